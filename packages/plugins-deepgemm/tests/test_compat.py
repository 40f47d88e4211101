"""DeepGEMM's names: what they call, what they refuse, and that everything else names itself."""

import inspect
import re
from typing import Any

import pytest
import torch

import opmux
from opmux_deepgemm import compat, launching

BF16, F32, FP8, I32 = torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.int32
NAMES = (
    "fp8_gemm_nt", "fp8_gemm_nn", "fp8_gemm_tn", "fp8_gemm_tt", "bf16_gemm_nt", "bf16_gemm_nn", "bf16_gemm_tn",
    "bf16_gemm_tt", "m_grouped_fp8_gemm_nt_contiguous", "m_grouped_fp8_gemm_nt_masked",
    "m_grouped_bf16_gemm_nt_contiguous", "m_grouped_bf16_gemm_nt_masked", "get_col_major_tma_aligned_tensor",
    "get_mn_major_tma_aligned_tensor", "get_tma_aligned_size", "transform_sf_into_required_layout",
    "get_mk_alignment_for_contiguous_layout", "set_num_sms", "get_num_sms",
)  # fmt: skip


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls of ops, which write 1 into their results."""
    found: list[Any] = []

    def op(name: str) -> Any:
        def call(*tensors: Any, out: torch.Tensor, backend: str, **options: Any) -> None:
            assert backend == "deepgemm"
            inspect.signature(getattr(real, name)).bind(*tensors, **options)
            found.append((name, tensors, options))
            out.fill_(1)

        return call

    real = type("Real", (), {name: staticmethod(getattr(opmux, name)) for name in OPS})
    for name in OPS:
        monkeypatch.setattr(opmux, name, op(name))
    return found


OPS = (
    "linear", "scaled_linear", "grouped_linear", "scaled_grouped_linear", "masked_grouped_linear",
    "scaled_masked_grouped_linear",
)  # fmt: skip


def codes(*shape: int, rows: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    *groups, m, k = shape
    return torch.zeros(shape).to(FP8), torch.ones(*groups, -(-m // rows), -(-k // 128))


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there_and_says_what_it_does(name) -> None:
    assert inspect.getdoc(getattr(compat, name))


@pytest.mark.parametrize("name", ["k_grouped_fp8_gemm_nt_contiguous", "fp8_mqa_logits", "einsum", "set_pdl"])
def test_what_is_missing_names_itself(name) -> None:
    with pytest.raises(AttributeError, match=rf"^opmux_deepgemm\.compat has no {name}: it stands for"):
        getattr(compat, name)


def test_dense_products(called) -> None:
    a, b, d = codes(4, 256), codes(256, 256, rows=128), torch.zeros(4, 256, dtype=BF16)
    compat.fp8_gemm_nt(a, b, d, None, (1, 128, 128), compiled_dims="mnk", disable_ue8m0_cast=True)
    x, w = torch.zeros(4, 64, dtype=BF16), torch.zeros(8, 64, dtype=BF16)
    y = torch.zeros(4, 8, dtype=BF16)
    compat.bf16_gemm_nt(x, w, y)
    (first, tensors, options), (second, others, none) = called
    assert (first, second) == ("scaled_linear", "linear")
    assert all(s is t for s, t in zip(tensors, (a[0], b[0], a[1], b[1]), strict=True))
    assert (options, none) == ({"out_dtype": BF16}, {})
    assert others == (x, w)
    assert d.min() == y.min() == 1


@pytest.mark.parametrize(
    ("form", "a_turned", "b_turned"), [("nn", False, True), ("tn", True, True), ("tt", True, False)]
)
def test_other_forms_are_views_of_the_same_memory(called, form, a_turned, b_turned) -> None:
    a, b, d = codes(4, 256), codes(256, 256, rows=128), torch.zeros(4, 256, dtype=BF16)
    given = [tuple(t.mT for t in pair) if turned else pair for pair, turned in ((a, a_turned), (b, b_turned))]
    getattr(compat, f"fp8_gemm_{form}")(*given, d, recipe=(1, 128, 128))
    x, w = torch.zeros(4, 64, dtype=BF16), torch.zeros(8, 64, dtype=BF16)
    given = [t.mT if turned else t for t, turned in ((x, a_turned), (w, b_turned))]
    getattr(compat, f"bf16_gemm_{form}")(*given, torch.zeros(4, 8, dtype=BF16))
    (_, tensors, _), (_, others, _) = called
    wanted = (a[0], b[0], a[1], b[1], x, w)
    for found, tensor in zip((*tensors, *others), wanted, strict=True):
        assert (found.data_ptr(), found.shape, found.stride()) == (tensor.data_ptr(), tensor.shape, tensor.stride())


def test_groups_of_rows(called) -> None:
    a, b, d = codes(8, 256), codes(4, 256, 256, rows=128), torch.zeros(8, 256, dtype=BF16)
    indices = torch.tensor([0, 0, -1, -1, 2, 2, 2, -1], dtype=I32)
    compat.m_grouped_fp8_gemm_nt_contiguous(a, b, d, indices)
    compat.m_grouped_bf16_gemm_nt_contiguous(a[0].bfloat16(), b[0].bfloat16(), d, indices)
    for name, tensors, _ in called:
        offsets, sizes = tensors[2], tensors[-1] if name.startswith("scaled") else tensors[3]
        assert (offsets.tolist(), sizes.tolist()) == ([0, 4, 4, 8, 8], [2, 0, 3, 0])
        assert (offsets.dtype, sizes.dtype) == (I32, I32)
    assert called[0][1][3] is a[1]


@pytest.mark.parametrize(
    ("indices", "offsets", "sizes"),
    [
        ([], [0, 0, 0, 0], [0, 0, 0]),
        ([-1, -1], [0, 2, 2, 2], [0, 0, 0]),
        ([-1, -1, 0, 0, 1], [2, 4, 5, 5], [2, 1, 0]),
        ([-1, 1, 1, -1, 2], [0, 1, 4, 5], [0, 2, 1]),
        ([1, 1, 2], [0, 0, 2, 3], [0, 2, 1]),
        ([0, 0, 0], [0, 3, 3, 3], [3, 0, 0]),
    ],
)
def test_indices_become_groups(indices, offsets, sizes) -> None:
    found = compat._groups(torch.tensor(indices, dtype=I32), 3)
    assert [t.tolist() for t in found] == [offsets, sizes]


@pytest.mark.parametrize("indices", [[-1, -1, 0, 0, 1], [-1, 1, 1, -1, 2, -1], [0, -1, 2, 2], [-1, -1]])
def test_the_rows_of_groups_are_those_that_indices_name(indices) -> None:
    given = torch.tensor([index for index in indices if index >= 0], dtype=I32)
    named = torch.tensor(indices, dtype=I32)
    offsets, sizes = (found.tolist() for found in compat._groups(named, 3))
    rows = [named[start : start + size].tolist() for start, size in zip(offsets, sizes, strict=False)]
    assert rows == [[group] * int((given == group).sum()) for group in range(3)]


def test_masked_groups(called) -> None:
    a, b, d = codes(2, 8, 256), codes(2, 256, 256, rows=128), torch.zeros(2, 8, 256, dtype=BF16)
    counts = torch.tensor([3, 8], dtype=I32)
    compat.m_grouped_fp8_gemm_nt_masked(a, b, d, counts, 5)
    compat.m_grouped_bf16_gemm_nt_masked(a[0].bfloat16(), b[0].bfloat16(), d, counts, expected_m=5)
    (_, tensors, options), (_, _, others) = called
    assert all(s is t for s, t in zip(tensors, (a[0], b[0], counts, a[1], b[1]), strict=True))
    assert (options, others) == ({"expected_m": 5, "out_dtype": BF16}, {"expected_m": 5})


REFUSED = [
    (
        {"c": torch.zeros(4, 256)}, NotImplementedError,
        "fp8_gemm_nt: `c` expected None, got a tensor; add it to the result",
    ),
    (
        {"recipe": (1, 1, 128)}, NotImplementedError,
        "fp8_gemm_nt: `recipe` expected None or (1, 128, 128), got (1, 1, 128); scale by such blocks",
    ),
    ({"compiled_dims": "nq"}, ValueError, "fp8_gemm_nt: `compiled_dims` expected letters of 'mnk', got 'nq'"),
]  # fmt: skip


@pytest.mark.parametrize(("keywords", "error", "message"), REFUSED)
def test_what_is_refused_says_why(keywords, error, message) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        compat.fp8_gemm_nt(codes(4, 256), codes(256, 256, rows=128), torch.zeros(4, 256), **keywords)


def test_the_op_itself_refuses_the_rest() -> None:
    with pytest.raises(NotImplementedError, match="archs: sm_90, this is cpu"):
        compat.bf16_gemm_nt(*(torch.zeros(8, 8, dtype=BF16) for _ in range(3)))


def test_rows_that_are_summed_are_counted() -> None:
    a = torch.zeros(8, 16, dtype=BF16)
    with pytest.raises(ValueError, match=r"`ks` expected 2 numbers whose sum is 8, got 2 with the sum 7; give each"):
        compat.k_grouped_bf16_gemm_tn_contiguous(a, a, torch.zeros(2, 16, 16), [3, 4], torch.tensor([3, 4]))


def test_scales_along_rows_are_padded_to_16_bytes() -> None:
    scales = torch.rand(2, 5, 3)
    found = compat.get_mn_major_tma_aligned_tensor(scales)
    assert torch.equal(found, scales)
    assert found.stride() == (24, 1, 8)
    assert compat.get_mn_major_tma_aligned_tensor(found) is found
    assert compat.get_tma_aligned_size(5, 4) == 8


def test_scales_of_each_recipe() -> None:
    scales, blocks = torch.rand(5, 3), torch.rand(2, 3)
    found = compat.transform_sf_into_required_layout(scales, 5, 300, (1, 128, 128), is_sfa=True)
    assert torch.equal(found, scales)
    assert found.stride() == (1, 8)
    assert compat.transform_sf_into_required_layout(blocks, 200, 300, (1, 128, 128), is_sfa=False) is blocks
    assert (
        compat.transform_sf_into_required_layout(blocks[None], 200, 300, (128, 128), 1).data_ptr() == blocks.data_ptr()
    )
    with pytest.raises(ValueError, match=r"^transform_sf_into_required_layout: `sf` expected the shape \(6, 3\), got"):
        compat.transform_sf_into_required_layout(scales, 6, 300, (1, 128))
    with pytest.raises(NotImplementedError, match=r"`recipe` expected blocks of .* got \(1, 32\) with float32;"):
        compat.transform_sf_into_required_layout(scales, 5, 300, (1, 32))


def test_the_number_of_multiprocessors(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(compat, "units_of", lambda index: 132)
    monkeypatch.setattr(compat, "_sms", None)
    assert compat.get_num_sms() == 132
    try:
        compat.set_num_sms(100)
        assert (compat.get_num_sms(), launching._most_units) == (100, 100)
    finally:
        launching.limit_units(None)
    with pytest.raises(ValueError, match=r"^set_num_sms: `new_num_sms` expected a number from 1 to 132, got 133$"):
        compat.set_num_sms(133)
    assert compat.get_mk_alignment_for_contiguous_layout() == 128
