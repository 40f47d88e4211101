"""Every kind of bad argument, with the whole text of what the caller is told."""

import pytest
import torch

import opmux
from opmux.errors import InvalidArgument

X, W = torch.randn(4, 8), torch.randn(8)
Q, K = torch.randn(2, 5, 4, 8), torch.randn(2, 6, 3, 8)
F8 = torch.float8_e4m3fn
CODES, SCALES = torch.ones(4, 8).to(F8), torch.ones(4, 1)
PACKED = torch.zeros(4, 1, dtype=torch.int32)
CACHE = torch.randn(2, 16, 2, 8)


def paged(q, k_cache, v_cache):
    """A call of paged_attention on one sequence."""
    ends, lengths, table = (torch.tensor(t, dtype=torch.int32) for t in ([0, 3], [3], [[0]]))
    return opmux.paged_attention(q, k_cache, v_cache, ends, lengths, table, max_seqlen_q=3, max_seqlen_k=3)


CASES = [
    (
        "wrong type",
        lambda: opmux.rms_norm([1.0], W),
        "rms_norm: `x` expected a torch.Tensor, got a list; convert it with torch.as_tensor",
    ),
    (
        "wrong dtype",
        lambda: opmux.rms_norm(X.int(), W),
        "rms_norm: `x` expected a dtype of Real (bfloat16, float16, float32, float64), got int32; "
        "cast it with .to(torch.bfloat16)",
    ),
    (
        "wrong dtype, one choice",
        lambda: opmux.write_kv_cache(
            K[0], K[0], K[:, :1].repeat(1, 16, 1, 1), K[:, :1].repeat(1, 16, 1, 1), X[0].int()
        ),
        "write_kv_cache: `slot_mapping` expected dtype int64, got int32; cast it with .to(torch.int64)",
    ),
    (
        "wrong rank",
        lambda: opmux.rms_norm(X, X),
        "rms_norm: `weight` expected rank 1 (hidden), got rank 2, shape [4, 8]; reshape it",
    ),
    (
        "rank too small",
        lambda: opmux.rms_norm(torch.tensor(1.0), W),
        "rms_norm: `x` expected at least rank 1 (*tokens hidden), got rank 0, shape []; reshape it",
    ),
    (
        "wrong dim",
        lambda: opmux.rms_norm(X, torch.randn(7)),
        "rms_norm: `weight` expected shape [hidden] = [8], got shape [7]; hidden = 8 comes from `x` float32[4, 8]",
    ),
    (
        "odd half",
        lambda: opmux.silu_and_mul(torch.randn(4, 7)),
        "silu_and_mul: `x` expected a dim of the form 2 * n, got 7 in shape [4, 7]; slice or pad it",
    ),
    (
        "a relation that is no shape",
        lambda: opmux.attention(Q, K, K),
        "attention: `q` expected heads % kv_heads == 0, got heads = 4, kv_heads = 3; "
        "query heads are shared evenly by the kv heads",
    ),
    (
        "mixed devices",
        lambda: opmux.rms_norm(X, W.to("meta")),
        "rms_norm: `weight` expected device cpu, where `x` is, got meta; move one of them with .to(device)",
    ),
    (
        "layout",
        lambda: opmux.rms_norm(X.to_sparse(), W),
        "rms_norm: `x` expected a strided tensor, got layout torch.sparse_coo; call .to_dense() on it first",
    ),
    (
        "dtypes that must agree",
        lambda: opmux.linear(X, torch.randn(3, 8, dtype=torch.float64)),
        "linear: `w` expected float32, the dtype of `x`, got float64; cast one of them with .to(torch.float32)",
    ),
    (
        "packed scales",
        lambda: opmux.scaled_linear(CODES, CODES, PACKED, SCALES, out_dtype=torch.float32),
        "scaled_linear: `x_scale` expected dtype float32, got int32; unpack it with opmux.unpack_scale",
    ),
    (
        "packed scales, two choices",
        lambda: opmux.convert_scale(PACKED, dtype=torch.float32),
        "convert_scale: `scale` expected a dtype of Scale (float32, float8_e8m0fnu), got int32; "
        "unpack it with opmux.unpack_scale",
    ),
    (
        "scales that are not packed",
        lambda: opmux.unpack_scale(SCALES, k_blocks=4, dtype=torch.float32),
        "unpack_scale: `packed` expected dtype int32, got float32; make it of scales with opmux.pack_scale",
    ),
    (
        "codes of queries and a cache of real numbers",
        lambda: paged(Q[0, :3].to(F8), CACHE, CACHE.clone()),
        "paged_attention: `k_cache` expected float8_e4m3fn, the dtype of `q`, got float32; "
        "pass `q` unquantised, or codes with their scales in `k_cache` and `v_cache`: a cast does not make them",
    ),
    (
        "codes of keys alone",
        lambda: paged(Q[0, :3], CACHE.to(F8), CACHE),
        "paged_attention: `v_cache` expected float8_e4m3fn, the dtype of `k_cache`, got float32; "
        "pass codes with their scales in `k_cache` and `v_cache`, or in none of them: a cast does not make them",
    ),
    (
        "codes of values alone",
        lambda: paged(Q[0, :3], CACHE, CACHE.to(F8)),
        "paged_attention: `v_cache` expected float32, the dtype of `q`, got float8_e4m3fn; "
        "pass codes with their scales in `k_cache` and `v_cache`, or in none of them: a cast does not make them",
    ),
    (
        "real numbers of different dtypes and a cache",
        lambda: paged(Q[0, :3], CACHE.bfloat16(), CACHE.bfloat16()),
        "paged_attention: `k_cache` expected float32, the dtype of `q`, got bfloat16; "
        "cast one of them with .to(torch.float32)",
    ),
    (
        "an option of another kind",
        lambda: opmux.rms_norm(X, W, eps="small"),
        "rms_norm: `eps` expected a float, got 'small' (str); the default is 1e-06",
    ),
    (
        "an option of another length",
        lambda: opmux.attention(Q, Q, Q, window=(1, 2, 3)),
        "attention: `window` expected 2 ints, got (1, 2, 3) (tuple); the default is (-1, -1)",
    ),
    (
        "a negative size",
        lambda: opmux.attention(Q, Q, Q, window=(-2, 0)),
        "attention: `window` expected window[0] >= -1 and window[1] >= -1, got window = (-2, 0)",
    ),
    (
        "an option out of its choices",
        lambda: opmux.gelu_and_mul(X, approximate="erf"),
        "gelu_and_mul: `approximate` expected 'none' or 'tanh', got 'erf' (str); the default is 'none'",
    ),
    (
        "a dtype option",
        lambda: opmux.quantize(X, dtype="int8"),
        "quantize: `dtype` expected a torch.dtype of Quantized (float8_e4m3fn, float8_e4m3fnuz, float8_e5m2, "
        "float8_e5m2fnuz, int8), got 'int8' (str); pass dtype=...",
    ),
    (
        "a dtype option out of its group",
        lambda: opmux.quantize(X, dtype=torch.bfloat16),
        "quantize: `dtype` expected a torch.dtype of Quantized (float8_e4m3fn, float8_e4m3fnuz, float8_e5m2, "
        "float8_e5m2fnuz, int8), got torch.bfloat16 (dtype); pass dtype=...",
    ),
    (
        "an output dtype that is neither the argument's nor that of its sums",
        lambda: opmux.linear(X.bfloat16(), X.bfloat16(), out_dtype=torch.float16),
        "linear: `out_dtype` expected None, torch.bfloat16 or torch.float32, as `x` is bfloat16, got torch.float16; "
        "omit it and convert the result with .to(torch.float16)",
    ),
    (
        "an output dtype narrower than the argument's",
        lambda: opmux.linear(X, X, out_dtype=torch.bfloat16),
        "linear: `out_dtype` expected None or torch.float32, as `x` is float32, got torch.bfloat16; "
        "omit it and convert the result with .to(torch.bfloat16)",
    ),
    (
        "an output dtype out of its group",
        lambda: opmux.linear(X, X, out_dtype=torch.int32),
        "linear: `out_dtype` expected a torch.dtype or None of Real (bfloat16, float16, float32, float64), "
        "got torch.int32 (dtype); the default is None",
    ),
    (
        "out of another dtype than the output's",
        lambda: opmux.linear(X.bfloat16(), X.bfloat16(), out_dtype=torch.float32, out=torch.empty(4, 4).bfloat16()),
        "linear: `out` expected float32[4, 4] on cpu, got bfloat16[4, 4] on cpu; "
        "make it with torch.empty of that shape, dtype and device",
    ),
    (
        "out of the wrong shape",
        lambda: opmux.rms_norm(X, W, out=torch.empty(3, 8)),
        "rms_norm: `out` expected float32[4, 8] on cpu, got float32[3, 8] on cpu; "
        "make it with torch.empty of that shape, dtype and device",
    ),
    (
        "out of the wrong number",
        lambda: opmux.add_rms_norm(X, X, W, out=torch.empty(4, 8)),
        "add_rms_norm: `out` expected 2 tensors (y, residual_out), got 1; pass a tuple of that length",
    ),
    (
        "out that overlaps itself",
        lambda: opmux.rms_norm(X, W, out=torch.empty(1, 8).expand(4, 8)),
        "rms_norm: `out` expected a tensor whose elements do not overlap, got strides [0, 1]; "
        "pass a tensor that is not expanded",
    ),
    (
        "out that is no tensor",
        lambda: opmux.rms_norm(X, W, out=3),
        "rms_norm: `out` expected float32[4, 8] on cpu, got an int; pass a tensor",
    ),
    (
        "a mutated tensor that requires a gradient",
        lambda: opmux.add_rms_norm_(X.clone().requires_grad_(), X.clone(), W),
        "add_rms_norm_: `x` expected a tensor that requires no gradient, since it is written in place, "
        "got one that does; pass x.detach(), or call it under torch.no_grad()",
    ),
]


@pytest.mark.parametrize(("call", "message"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_a_bad_argument_is_explained(call, message):
    with pytest.raises((InvalidArgument, opmux.errors.GradientRefused)) as caught:
        call()
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(("call", "message"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_a_bad_call_leaves_the_op_working(call, message):
    before = opmux.rms_norm(X, W)
    with pytest.raises((InvalidArgument, opmux.errors.GradientRefused)):
        call()
    assert torch.equal(opmux.rms_norm(X, W), before)
    assert opmux.quarantined() == ()


def test_a_bad_call_after_good_ones_is_explained_too():
    """The direct way has a plan by then: its own conditions must catch what the checks would."""
    for _ in range(3):
        opmux.rms_norm(X, W)
    for bad in (torch.randn(7), torch.randn(8, 1), torch.randn(1, 8), torch.randn(())):
        with pytest.raises(InvalidArgument, match="rms_norm: `weight` expected"):
            opmux.rms_norm(X, bad)
    with pytest.raises(InvalidArgument, match="`eps` expected a float"):
        opmux.rms_norm(X, W, eps=[1])


def test_what_normalises_is_accepted():
    assert torch.equal(opmux.rms_norm(X, W, eps=1), opmux.rms_norm(X, W, eps=1.0))
    assert torch.equal(opmux.attention(Q, Q, Q, window=[1, 0]), opmux.attention(Q, Q, Q, window=(1, 0)))


def test_missing_and_unknown_arguments_are_pythons_own_errors():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'weight'"):
        opmux.rms_norm(X)
    with pytest.raises(TypeError, match="unexpected keyword argument 'epsilon'"):
        opmux.rms_norm(X, W, epsilon=1e-5)
