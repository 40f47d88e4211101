"""8-bit KV caches: written codes against `static_quantize`, attention against that on the values of the codes."""

import pytest
import torch
from torch import Tensor

import opmux
from opmux.errors import InvalidArgument

CODES = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.int8)
LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e4m3fnuz: 240.0, torch.int8: 127.0}
HEADS = torch.tensor([0.03, 0.5, 0.004])
ONE = torch.tensor([0.07])


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def caches(codes: torch.dtype, heads: int = 3, dim: int = 8, pages: int = 4) -> tuple[Tensor, Tensor]:
    return tuple(torch.zeros(pages, 16, heads, dim, dtype=codes) for _ in range(2))


def written(k: Tensor, v: Tensor, codes: torch.dtype, *scales: Tensor | None) -> tuple[Tensor, Tensor]:
    k_cache, v_cache = caches(codes)
    opmux.write_kv_cache(k, v, k_cache, v_cache, torch.arange(k.shape[0]) * 3, *scales)
    return tuple(cache.flatten(0, 1)[: 3 * k.shape[0] : 3] for cache in (k_cache, v_cache))


@pytest.mark.parametrize("scale", [HEADS, ONE, None], ids=["heads", "one", "none"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("codes", CODES, ids=str)
def test_writes_what_static_quantize_gives(codes, dtype, scale):
    k, v = (torch.randn(5, 3, 8).to(dtype) for _ in range(2))
    of_heads = (torch.ones(1) if scale is None else scale).expand(3)
    for values, stored in zip((k, v), written(k, v, codes, scale, scale), strict=True):
        # A head at a time is a matrix (tokens, dim) with one scale.
        expected = opmux.static_quantize(values.transpose(0, 1), of_heads[:, None, None], dtype=codes)
        assert torch.equal(stored.float(), expected.transpose(0, 1).float())


@pytest.mark.parametrize("codes", LARGEST, ids=str)
def test_saturates_and_keeps_nan(codes):
    k = torch.zeros(2, 3, 8)
    k[0, 0, :4] = torch.tensor([1e30, -1e30, float("inf"), -float("inf")])
    k[1, 2, 5] = float("nan")
    stored, _ = written(k, torch.zeros_like(k), codes, HEADS, HEADS)
    largest = LARGEST[codes]
    assert stored[0, 0, :4].float().tolist() == [largest, -largest, largest, -largest]
    rest = stored.float()
    assert rest[1, 2, 5] == 0 if codes == torch.int8 else rest[1, 2, 5].isnan()
    rest[0, 0, :4] = rest[1, 2, 5] = 0
    assert not rest.any()


def paged(codes: torch.dtype, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Queries, caches of codes and index data for two sequences of 20 and 7 keys, with 3 and 1 new tokens."""
    q = torch.randn(4, 6, 8)
    k_cache, v_cache = (torch.randn(4, 16, 3, 8).mul(20).to(codes) for _ in range(2))
    table = torch.tensor([[2, 0], [3, 3]], dtype=torch.int32)
    indices = torch.tensor([0, 3, 4], dtype=torch.int32), torch.tensor([20, 7], dtype=torch.int32), table
    return q.to(dtype), k_cache, v_cache, *indices


LONGEST = {"max_seqlen_q": 3, "max_seqlen_k": 20}


def values_of(stored: Tensor, scale: Tensor | None) -> Tensor:
    return stored.double() * (1 if scale is None else scale.double()[:, None])


@pytest.mark.parametrize("scales", [(HEADS, HEADS.flip(0)), (ONE, HEADS), (None, ONE), (None, None)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("codes", CODES, ids=str)
def test_attention_is_that_of_the_values(codes, dtype, scales):
    k_scale, v_scale = scales
    q, k_cache, v_cache, *indices = paged(codes, dtype)
    given = {"softcap": 3.0, "window": (9, 0)}
    out, lse = opmux.paged_attention_lse(
        q, k_cache, v_cache, *indices, None, None, k_scale, v_scale, **LONGEST, **given
    )
    values = values_of(k_cache, k_scale), values_of(v_cache, v_scale)
    exact, exact_lse = opmux.paged_attention_lse(q.double(), *values, *indices, **LONGEST, **given)
    assert (out.dtype, lse.dtype) == (dtype, torch.float32)
    close = {"rtol": 2e-2 if dtype == torch.bfloat16 else 1e-4, "atol": 1e-3}
    torch.testing.assert_close(out.double(), exact, **close)
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("q_scale", [HEADS, ONE, None], ids=["heads", "one", "none"])
def test_fp8_queries_give_bfloat16(q_scale):
    codes = torch.float8_e4m3fn
    q, k_cache, v_cache, *indices = paged(codes, codes)
    out, lse = opmux.paged_attention_lse(q, k_cache, v_cache, *indices, None, q_scale, HEADS, ONE, **LONGEST)
    factors = torch.ones(1) if q_scale is None else q_scale
    wide = q.double() * factors.double().expand(3).repeat_interleave(2)[:, None]
    values = values_of(k_cache, HEADS), values_of(v_cache, ONE)
    exact, exact_lse = opmux.paged_attention_lse(wide, *values, *indices, **LONGEST)
    assert (out.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(out.double(), exact, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-4, atol=1e-4)


def test_a_scale_of_the_wrong_shape_is_named_with_the_shapes_expected():
    k = torch.randn(4, 3, 8)
    with pytest.raises(InvalidArgument) as refused:
        written(k, k, torch.int8, torch.ones(2), None)
    assert str(refused.value) == (
        "write_kv_cache: `k_scale` expected shape [kv_heads|1] = [3] or [1], got shape [2]; "
        "kv_heads = 3 comes from `k` float32[4, 3, 8]"
    )
    q, *rest = paged(torch.int8, torch.bfloat16)
    with pytest.raises(InvalidArgument, match=r"^paged_attention: `v_scale` expected shape \[kv_heads\|1\] = \[3\] or"):
        opmux.paged_attention(q, *rest, None, None, None, torch.ones(6), **LONGEST)


def test_real_numbers_have_no_scale():
    k, cache = torch.randn(4, 3, 8), torch.zeros(2, 16, 3, 8)
    with pytest.raises(InvalidArgument) as refused:
        opmux.write_kv_cache(k, k, cache, cache.clone(), torch.arange(4), None, ONE)
    assert str(refused.value) == (
        "write_kv_cache: `v_scale` expected None, since `v_cache` holds no 8-bit values, "
        "got float32[1], and `v_cache` float32; omit it, or pass an 8-bit `v_cache`"
    )
    q, *rest = paged(torch.int8, torch.bfloat16)
    with pytest.raises(InvalidArgument, match=r"^paged_attention: `q_scale` expected None, since `q` holds no 8-bit"):
        opmux.paged_attention(q, *rest, None, ONE, **LONGEST)


@pytest.mark.parametrize(
    ("dtypes", "blamed", "expected"),
    [
        ((torch.bfloat16, torch.int8, torch.bfloat16), "v_cache", "int8, the dtype of `k_cache`"),
        ((torch.bfloat16, torch.bfloat16, torch.int8), "v_cache", "bfloat16, the dtype of `q`"),
        ((torch.bfloat16, torch.float32, torch.float32), "k_cache", "bfloat16, the dtype of `q`"),
        ((torch.float8_e5m2, torch.int8, torch.int8), "k_cache", "float8_e5m2, the dtype of `q`"),
        ((torch.float8_e5m2, torch.bfloat16, torch.bfloat16), "k_cache", "float8_e5m2, the dtype of `q`"),
    ],
    ids=str,
)
def test_dtypes_that_do_not_go_together_are_refused(dtypes, blamed, expected):
    q, k_cache, v_cache, *indices = paged(torch.int8, torch.bfloat16)
    tensors = [t.to(dtype) for t, dtype in zip((q, k_cache, v_cache), dtypes, strict=True)]
    with pytest.raises(InvalidArgument) as refused:
        opmux.paged_attention(*tensors, *indices, **LONGEST)
    assert str(refused.value).startswith(f"paged_attention: `{blamed}` expected {expected}, got ")


def test_compiled_calls_and_fake_tensors_know_the_output():
    codes = torch.float8_e4m3fn
    q, k_cache, v_cache, *indices = (t.to("meta") for t in paged(codes, codes))
    out, lse = torch.ops.opmux.paged_attention_lse(q, k_cache, v_cache, *indices, **LONGEST)
    assert (out.dtype, tuple(out.shape), lse.dtype) == (torch.bfloat16, (4, 6, 8), torch.float32)
