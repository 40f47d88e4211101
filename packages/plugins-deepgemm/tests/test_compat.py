"""DeepGEMM's names: what they call, what they refuse, and that everything else names itself."""

import inspect
import re
from typing import Any

import pytest
import torch

import opmux
from opmux.plugin import parse_arch
from opmux_deepgemm import compat, launching
from opmux_deepgemm.compat import adding, dense, multiprocessors
from opmux_deepgemm.compat.checking import published
from opmux_deepgemm.compat.layouts import groups_of, groups_of_ends

BF16, F32, FP8, I32 = torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.int32
NAMES = (
    *(f"{kind}_gemm_{form}" for kind in ("fp8_fp4", "cublaslt") for form in ("nt", "nn", "tn", "tt")),
    *(f"m_grouped_{kind}_gemm_{way}" for kind in ("fp8", "fp8_fp4", "bf16") for way in ("nn_contiguous", "nt_masked")),
    "k_grouped_bf16_gemm_tn_contiguous", "k_grouped_fp8_gemm_nt_contiguous", "k_grouped_fp8_gemm_tn_contiguous",
    "get_theoretical_mk_alignment_for_contiguous_layout", "set_mk_alignment_for_contiguous_layout",
    "fp8_gemm_nt", "fp8_gemm_nn", "fp8_gemm_tn", "fp8_gemm_tt", "bf16_gemm_nt", "bf16_gemm_nn", "bf16_gemm_tn",
    "bf16_gemm_tt", "m_grouped_fp8_gemm_nt_contiguous", "m_grouped_fp8_gemm_nt_masked",
    "m_grouped_bf16_gemm_nt_contiguous", "m_grouped_bf16_gemm_nt_masked", "get_col_major_tma_aligned_tensor",
    "get_mn_major_tma_aligned_tensor", "get_tma_aligned_size", "transform_sf_into_required_layout",
    "get_mk_alignment_for_contiguous_layout", "set_num_sms", "get_num_sms", "get_m_alignment_for_contiguous_layout",
    "get_k_alignment_for_contiguous_layout", "get_mn_major_tma_aligned_packed_ue8m0_tensor",
    "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor",
)  # fmt: skip


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls of ops, which write 1 into their results."""
    found: list[Any] = []

    def op(name: str) -> Any:
        def call(*tensors: Any, out: torch.Tensor | None = None, backend: str, **options: Any) -> Any:
            assert backend == "deepgemm"
            inspect.signature(getattr(real, name)).bind(*tensors, **options)
            found.append((name, tensors, options))
            if name in ADDING:
                return tensors[0].add_(1)
            if out is None:
                return torch.ones(len(tensors[0]), len(tensors[1]), dtype=options.get("out_dtype", BF16))
            return out.fill_(1)

        return call

    real = type("Real", (), {name: staticmethod(getattr(opmux, name)) for name in OPS})
    monkeypatch.setattr(adding, "takers", lambda op, *tensors, arch, backend: (op,))
    for name in OPS:
        monkeypatch.setattr(opmux, name, op(name))
    return found


ADDING = ("scaled_linear_accumulate", "grouped_weight_grad", "scaled_grouped_weight_grad")
OPS = (
    *ADDING,
    "linear", "scaled_linear", "grouped_linear", "scaled_grouped_linear", "masked_grouped_linear",
    "scaled_masked_grouped_linear",
)  # fmt: skip


def codes(*shape: int, rows: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    *groups, m, k = shape
    return torch.zeros(shape).to(FP8), torch.ones(*groups, -(-m // rows), -(-k // 128))


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there_and_says_what_it_does(name) -> None:
    assert inspect.getdoc(getattr(compat, name))


@pytest.mark.parametrize("name", ["fp8_mqa_logits", "einsum", "set_pdl", "cublaslt_nvfp4_gemm_nt"])
def test_what_is_missing_names_itself(name) -> None:
    with pytest.raises(AttributeError, match=rf"^opmux_deepgemm\.compat has no {name}: it stands for"):
        getattr(compat, name)


def test_dense_products(called) -> None:
    a, b, d = codes(4, 256), codes(256, 256, rows=128), torch.zeros(4, 256, dtype=BF16)
    compat.fp8_gemm_nt(a, b, d, None, (1, 128, 128), compiled_dims="mnk", disable_ue8m0_cast=True)
    x, w = torch.zeros(4, 64, dtype=BF16), torch.zeros(8, 64, dtype=BF16)
    y = torch.zeros(4, 8, dtype=BF16)
    compat.bf16_gemm_nt(x, w, y)
    (first, tensors, options), (second, others, others_options) = called
    assert (first, second) == ("scaled_linear", "linear")
    assert all(s is t for s, t in zip(tensors, (a[0], b[0], a[1], b[1]), strict=True))
    assert options == others_options == {"out_dtype": BF16}
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
        assert (offsets.tolist(), sizes.tolist()) == ([0, 4, 4, 8, 8], [4, 0, 4, 0])  # padding is computed too
        assert (offsets.dtype, sizes.dtype) == (I32, I32)
    assert called[0][1][3] is a[1]


@pytest.mark.parametrize(
    ("indices", "offsets", "sizes"),
    [
        ([], [0, 0, 0, 0], [0, 0, 0]),
        ([-1, -1], [0, 2, 2, 2], [0, 0, 0]),
        ([-1, -1, 0, 0, 1], [2, 4, 5, 5], [2, 1, 0]),
        ([-1, 1, 1, -1, 2], [0, 1, 4, 5], [0, 3, 1]),
        ([1, 1, 2], [0, 0, 2, 3], [0, 2, 1]),
        ([0, 0, 0], [0, 3, 3, 3], [3, 0, 0]),
    ],
)
def test_indices_become_groups(indices, offsets, sizes) -> None:
    found = groups_of(torch.tensor(indices, dtype=I32), 3)
    assert [t.tolist() for t in found] == [offsets, sizes]


def test_padding_counts_up_to_the_next_block_of_the_alignment() -> None:
    indices = torch.full((512,), -1, dtype=I32)
    indices[:5], indices[128:300] = 0, 1
    offsets, sizes = groups_of(indices, 2)
    assert (offsets.tolist(), sizes.tolist()) == ([0, 128, 512], [128, 256])
    offsets, sizes = groups_of_ends(torch.tensor([5, 128, 300, 384], dtype=I32))
    assert (offsets.tolist(), sizes.tolist()) == ([0, 128, 128, 384, 384], [5, 0, 172, 0])
    assert offsets.dtype == sizes.dtype == I32
    try:
        compat.set_mk_alignment_for_contiguous_layout(4)
        assert compat.get_mk_alignment_for_contiguous_layout() == 4
        assert groups_of(indices[:16], 2)[1].tolist() == [8, 0]
    finally:
        compat.set_mk_alignment_for_contiguous_layout(128)
    assert compat.get_theoretical_mk_alignment_for_contiguous_layout(20) == 128
    with pytest.raises(ValueError, match=r"^set_mk_alignment_for_contiguous_layout: `alignment` expected a .* got 0$"):
        compat.set_mk_alignment_for_contiguous_layout(0)


def test_groups_that_are_given_by_their_ends(called) -> None:
    a, b, d = codes(256, 256), codes(2, 256, 256, rows=128), torch.zeros(256, 256, dtype=BF16)
    ends = torch.tensor([5, 200], dtype=I32)
    compat.m_grouped_fp8_fp4_gemm_nt_contiguous(a, b, d, ends, use_psum_layout=True, expected_m_for_psum_layout=6)
    compat.m_grouped_bf16_gemm_nt_contiguous(a[0].bfloat16(), b[0].bfloat16(), d, ends, use_psum_layout=True)
    for name, tensors, _ in called:
        offsets, sizes = tensors[2], tensors[-1] if name.startswith("scaled") else tensors[3]
        assert (offsets.tolist(), sizes.tolist()) == ([0, 128, 200], [5, 72])


def test_weights_of_groups_that_lie_across_k_are_copied_where_they_cannot_be_read(called) -> None:
    a, b = torch.zeros(8, 64, dtype=BF16), torch.rand(2, 64, 16).to(BF16)
    compat.m_grouped_bf16_gemm_nn_contiguous(a, b, torch.zeros(8, 16, dtype=BF16), torch.zeros(8, dtype=I32))
    narrow = torch.rand(2, 64, 20).to(BF16)[:, :, :16]  # columns begin at multiples of 40 bytes
    compat.m_grouped_bf16_gemm_nn_contiguous(a, narrow, torch.zeros(8, 16, dtype=BF16), torch.zeros(8, dtype=I32))
    (_, read, _), (_, copied, _) = called
    assert torch.equal(read[1], b.mT)
    assert read[1].data_ptr() == b.data_ptr()
    assert torch.equal(copied[1], narrow.mT)
    assert copied[1].is_contiguous()
    codes_of_b = tuple(t.mT for t in codes(2, 256, 128, rows=128))
    compat.m_grouped_fp8_gemm_nn_contiguous(
        codes(8, 128), codes_of_b, torch.zeros(8, 256, dtype=BF16), torch.zeros(8, dtype=I32)
    )
    assert called[2][1][1].data_ptr() == codes_of_b[0].data_ptr()


def test_what_is_given_is_added(called) -> None:
    a, b = codes(4, 256), codes(256, 256, rows=128)
    c, d = torch.full((4, 256), 2.0), torch.zeros(4, 256)
    compat.fp8_gemm_nt(a, b, d, c)
    assert bool((d == 3).all())
    compat.fp8_gemm_nt(a, b, d, d, recipe_a=(1, 128), recipe_b=(128, 128))
    assert bool((d == 4).all())
    rows = (a, codes(256, 256))
    compat.fp8_gemm_nt(*rows, d, c, recipe=(1, 1, 128))
    assert bool((d == 3).all())
    compat.fp8_gemm_nt(*rows, d, c=d, recipe_a=(1, 128), recipe_b=(1, 128))
    assert bool((d == 4).all())
    compat.fp8_gemm_nt(*rows, half := torch.zeros(4, 256, dtype=BF16), recipe=(1, 1, 128))
    assert bool((half == 1).all())
    assert [name for name, _, _ in called] == ["scaled_linear"] * 2 + ["scaled_linear_accumulate"] * 3
    assert all(options == {"out_dtype": F32} for name, _, options in called[:2])


def test_products_in_bfloat16_with_a_float32_result(called) -> None:
    a, b = torch.zeros(300, 64, dtype=BF16), torch.zeros(64, 128, dtype=BF16)
    for d in (torch.zeros(300, 128), torch.zeros(300, 256)[:, :128]):
        compat.bf16_gemm_nn(a, b, d)
        assert bool((d == 1).all())
    assert [(name, options) for name, _, options in called] == [("linear", {"out_dtype": F32})] * 2


def test_products_in_bfloat16_that_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []

    def multiply(config: Any, given: Any, total: torch.Tensor, accumulate: bool) -> None:
        assert accumulate
        found.append((config, total.dtype))
        total.add_(1)

    monkeypatch.setattr(dense, "multiply", multiply)
    monkeypatch.setattr(adding, "device_arch", lambda kind, index: parse_arch("sm_90"))
    a, b = torch.zeros(300, 64, dtype=BF16), torch.zeros(64, 128, dtype=BF16)
    d, c = torch.zeros(300, 128), torch.full((300, 128), 2.0)
    compat.bf16_gemm_nn(a, b, d, c)
    assert bool((d == 3).all())
    compat.bf16_gemm_nn(a, b, d, c=d)
    assert bool((d == 4).all())
    compat.bf16_gemm_nn(a, b, half := torch.zeros(300, 128, dtype=BF16), c.to(BF16))
    assert bool((half == 3).all())
    compat.bf16_gemm_nn(a, b, gapped := torch.zeros(300, 256)[:, :128], c)
    assert bool((gapped == 3).all())
    assert [dtype for _, dtype in found] == [F32] * 4
    assert all(config.kernel == "large" for config, _ in found)
    for refused in (torch.zeros(300, 65, dtype=BF16)[:, 1:], a.float()):
        with pytest.raises((NotImplementedError, ValueError), match=r"^linear: "):
            compat.bf16_gemm_nn(refused, b, d, c)


def test_codes_of_groups_are_summed(called) -> None:
    m, n, ks = 48, 32, [256, 0, 128]
    counts, d = torch.tensor(ks, dtype=I32), torch.full((3, m, n), 5.0)
    a, b = ((torch.randn(384, width).to(FP8), torch.rand(3, width)) for width in (m, n))
    compat.k_grouped_fp8_gemm_tn_contiguous(a, b, d, ks, counts)
    assert bool((d == 1).all())
    flat = [
        (torch.cat([codes_of[:256].T.reshape(-1), codes_of[256:].T.reshape(-1)]), scale.T) for codes_of, scale in (a, b)
    ]
    compat.k_grouped_fp8_gemm_nt_contiguous(*flat, d, ks, counts, d)
    assert [float(group.mean()) for group in d] == [2, 1, 2]
    whole, first, last = (tensors for _, tensors, _ in called)
    assert whole[3].tolist() == [0, 256, 256, 384]
    for tensors, rows, blocks in ((first, slice(0, 256), slice(0, 2)), (last, slice(256, 384), slice(2, 3))):
        assert tensors[3].tolist() == [0, len(tensors[1])]
        assert torch.equal(tensors[1].view(torch.uint8), a[0][rows].view(torch.uint8))
        assert torch.equal(tensors[2].view(torch.uint8), b[0][rows].view(torch.uint8))
        assert tensors[1].stride(0) == tensors[2].stride(0) == 1
        assert torch.equal(tensors[4], a[1][blocks])
        assert torch.equal(tensors[5], b[1][blocks])
    for keywords, error, message in (
        ({"recipe": (1, 1, 32)}, NotImplementedError, r"`recipe` expected \(1, 1, 128\), got \(1, 1, 32\); scale by"),
        ({"c": d[:1]}, ValueError, r"`c` expected float32\[3, 48, 32\], as d is, got float32\[1, 48, 32\]"),
    ):
        with pytest.raises(error, match=rf"^k_grouped_fp8_gemm_tn_contiguous: {message}"):
            compat.k_grouped_fp8_gemm_tn_contiguous(a, b, d, ks, counts, **keywords)
    with pytest.raises(
        ValueError, match=r"`ks_cpu` expected multiples of 128, got \[200, 0, 184\]; pad each group with"
    ):
        compat.k_grouped_fp8_gemm_nt_contiguous(*flat, d, [200, 0, 184], counts)


@pytest.mark.parametrize("indices", [[-1, -1, 0, 0, 1], [-1, 1, 1, -1, 2, -1], [0, -1, 2, 2], [-1, -1]])
def test_the_rows_of_groups_are_those_that_indices_name(indices) -> None:
    given = torch.tensor([index for index in indices if index >= 0], dtype=I32)
    named = torch.tensor(indices, dtype=I32)
    offsets, sizes = (found.tolist() for found in groups_of(named, 3))
    rows = [named[start : start + size].tolist() for start, size in zip(offsets, sizes, strict=False)]
    assert [[row for row in group if row >= 0] for group in rows] == [
        [group] * int((given == group).sum()) for group in range(3)
    ]
    assert all(group[:1] != [-1] for group in rows)


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
        {"c": torch.zeros(4, 128)}, ValueError,
        "fp8_gemm_nt: `c` expected float32[4, 256], as d is, got float32[4, 128]",
    ),
    (
        {"recipe": (1, 1, 32)}, NotImplementedError,
        "fp8_gemm_nt: `recipe` expected None, (1, 128, 128) or (1, 1, 128), got (1, 1, 32); scale by such blocks",
    ),
    (
        {"recipe_a": (1, 32), "recipe_b": (1, 32)}, NotImplementedError,
        "fp8_gemm_nt: `recipe` expected None, (1, 128, 128) or (1, 1, 128), got ((1, 32), (1, 32)); scale by such "
        "blocks",
    ),
    (
        {"recipe": (1, 128, 128), "recipe_a": (1, 32), "recipe_b": (1, 32)}, ValueError,
        "fp8_gemm_nt: `recipe` expected None beside `recipe_a` and `recipe_b`, got (1, 128, 128) beside (1, 32) and "
        "(1, 32); leave one of them out",
    ),
    (
        {"recipe_b": (1, 128)}, ValueError,
        "fp8_gemm_nt: `recipe_a` and `recipe_b` expected both or none, got None and (1, 128); give both, or `recipe`",
    ),
    (
        {"recipe": (1, 128, 128), "recipe_a": (1, 128)}, ValueError,
        "fp8_gemm_nt: `recipe_a` and `recipe_b` expected both or none, got (1, 128) and None; give both, or `recipe`",
    ),
    ({"compiled_dims": "nq"}, ValueError, "fp8_gemm_nt: `compiled_dims` expected letters of 'mnk', got 'nq'"),
]  # fmt: skip


@pytest.mark.parametrize(("keywords", "error", "message"), REFUSED)
def test_what_is_refused_says_why(keywords, error, message) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        compat.fp8_gemm_nt(codes(4, 256), codes(256, 256, rows=128), torch.zeros(4, 256), **keywords)


def matrices(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.zeros(shape, dtype=BF16) for shape in shapes]


SUMMED = torch.zeros(2, 16, 16)
COUNTS = torch.tensor([128, 128], dtype=I32)
FLAT = torch.zeros(256 * 16).to(FP8), torch.ones(16, 2)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("fp8_gemm_nt", (codes(4, 256), codes(256, 256, rows=128), torch.zeros(4, 256))),
        ("fp8_gemm_nn", (codes(4, 256), codes(256, 256, rows=128), torch.zeros(4, 256))),
        ("bf16_gemm_nt", matrices((4, 64), (8, 64), (4, 8))),
        ("bf16_gemm_tt", matrices((64, 4), (64, 8), (4, 8))),
        ("m_grouped_bf16_gemm_nt_contiguous", (*matrices((4, 64), (1, 8, 64), (4, 8)), torch.zeros(4, dtype=I32))),
        ("m_grouped_bf16_gemm_nt_masked", (*matrices((1, 4, 64), (1, 8, 64), (1, 4, 8)), torch.ones(1, dtype=I32), 1)),
        ("k_grouped_fp8_gemm_nt_contiguous", (FLAT, FLAT, SUMMED, [128, 128], COUNTS)),
    ],
)
def test_alpha_of_a_newer_deepgemm_is_refused_by_name(called, name, given) -> None:
    wanted = (
        r"`alpha` expected to be left out, as DeepGEMM 2\.6 has no such keyword, got 2\.0; multiply `d` afterwards$"
    )
    with pytest.raises(NotImplementedError, match=rf"^{name}: {wanted}"):
        getattr(compat, name)(*given, alpha=2.0)
    assert not called


@pytest.mark.parametrize("name", [name for name in compat.__all__ if name.startswith("k_grouped")])
def test_groups_that_are_summed_are_given_by_their_numbers_of_rows(called, name) -> None:
    call = getattr(compat, name)
    operands = matrices((256, 16), (256, 16)) if "bf16" in name else (FLAT, FLAT)
    with pytest.raises(
        NotImplementedError,
        match=rf"^{name}: `use_psum_layout` expected False on Hopper GPUs, got True; say with `ks_c",
    ):
        call(*operands, SUMMED, [128, 128], COUNTS, use_psum_layout=True)
    with pytest.raises(
        NotImplementedError, match=rf"^{name}: `ks_cpu` expected how many rows each group has, got None;"
    ):
        call(*operands, SUMMED, None, COUNTS)
    assert not called


def test_what_python_says_of_arguments_has_the_name() -> None:
    a, b, d = matrices((4, 64), (8, 64), (4, 8))
    for name in ("bf16_gemm_nt", "bf16_gemm_nn"):
        with pytest.raises(TypeError, match=rf"^{name}: got an unexpected keyword argument 'beta'$"):
            getattr(compat, name)(a, b, d, beta=1.0)
        with pytest.raises(TypeError, match=rf"^{name}: missing a required .*'d'$"):
            getattr(compat, name)(a, b)
    with pytest.raises(
        TypeError, match=r"^k_grouped_bf16_gemm_tn_contiguous: got an unexpected keyword argument 'ks'$"
    ):
        compat.k_grouped_bf16_gemm_tn_contiguous(a, b, d, ks_cpu=[4], ks=[4], grouped_layout=COUNTS)

    def product(name: str, size: int) -> None:
        raise TypeError("unsupported operand")

    with pytest.raises(TypeError, match=r"^unsupported operand$"):  # of what is called, left as it is
        published(product, "bf16_gemm_nt")(4)


def test_codes_without_scales_are_refused() -> None:
    a, b = codes(4, 256), codes(256, 256, rows=128)
    with pytest.raises(
        ValueError, match=r"^fp8_gemm_nt: `a` expected two tensors, codes and their scales, got Tensor;"
    ):
        compat.fp8_gemm_nt(a[0], b, torch.zeros(4, 256))
    with pytest.raises(ValueError, match=r": `b` expected two tensors, codes and their scales, got 1 of them; make"):
        compat.fp8_gemm_nt(a, b[:1], torch.zeros(4, 256))
    with pytest.raises(ValueError, match=r"^fp8_gemm_nn: `b` expected two tensors, codes and their scales, got 1 of t"):
        compat.fp8_gemm_nn(a, b[:1], torch.zeros(4, 256))


@pytest.mark.parametrize(
    "name", [name for name in compat.__all__ if name.startswith(("fp8", "bf16", "m_grouped", "k_grouped"))]
)
def test_errors_have_the_name_that_was_called(called, name) -> None:
    operands: list[Any] = [codes(4, 256), codes(256, 256, rows=128)] if "fp8" in name else matrices((4, 8), (4, 8))
    if "nn_contiguous" in name:
        operands[1] = codes(1, 256, 256, rows=128) if "fp8" in name else matrices((1, 4, 8))[0]
    groups = {"m_grouped": [COUNTS], "k_grouped": [[4], COUNTS]}.get(name[:9], [])
    more = [4] if name.endswith("masked") else []
    with pytest.raises(ValueError, match=rf"^{name}: `compiled_dims` expected letters of 'mnk', got 'q'$"):
        getattr(compat, name)(*operands, torch.zeros(4, 256), *groups, *more, compiled_dims="q")
    assert getattr(compat, name).__name__ == name
    assert not called


def test_what_is_added_to_is_checked_before_it_is_written(called) -> None:
    for rows, recipe, d in (
        (codes(1, 256), None, torch.zeros(4, 256)),
        (codes(4, 256), None, torch.zeros(4, 64)),
        (codes(1, 256), (1, 1, 128), torch.zeros(4, 256)),
    ):
        b = codes(256, 256, rows=1 if recipe else 128)
        wanted = rf"^fp8_gemm_nt: `d` expected shape \[{len(rows[0])}, 256\] on cpu, got \[4, {d.shape[1]}\] on cpu;"
        with pytest.raises(ValueError, match=wanted):
            compat.fp8_gemm_nt(rows, b, d, torch.ones_like(d), recipe=recipe)
        assert not d.any()
    assert not called


def test_a_float32_result_of_another_shape_is_refused() -> None:
    """In DeepGEMM's words: the op would name other arguments."""
    a, b = matrices((4, 64), (8, 64))
    for d in (torch.zeros(4, 16), torch.zeros(8, 8), torch.zeros(4, 8, device="meta")):
        with pytest.raises(ValueError, match=r"^bf16_gemm_nt: `d` expected shape \[4, 8\] on cpu, got \["):
            compat.bf16_gemm_nt(a, b, d)
    with pytest.raises(ValueError, match=r"^bf16_gemm_nt: `a` expected rank 2, got shape \[1, 4, 64\]; reshape it"):
        compat.bf16_gemm_nt(a[None], b, torch.zeros(4, 8))


def test_layouts_of_groups_are_checked() -> None:
    a, b, d = matrices((4, 64), (2, 8, 64), (4, 8))
    for layout, ends, message in (
        (torch.zeros(4, dtype=torch.int64), False, r"int32\[4\], the group of each row of `a`, got int64\[4\]; see"),
        (torch.zeros(3, dtype=I32), False, r"int32\[4\], the group of each row of `a`, got int32\[3\]; see"),
        (torch.zeros(3, dtype=I32), True, r"int32\[2\], where the rows of each group of `b` end, got int32\[3\]; see"),
    ):
        with pytest.raises(
            ValueError, match=rf"^m_grouped_bf16_gemm_nt_contiguous: `grouped_layout` expected {message}"
        ):
            compat.m_grouped_bf16_gemm_nt_contiguous(a, b, d, layout, use_psum_layout=ends)
    with pytest.raises(
        ValueError, match=r": `expected_m_for_psum_layout` expected None without `use_psum_layout`, got 4;"
    ):
        compat.m_grouped_bf16_gemm_nt_contiguous(a, b, d, torch.zeros(4, dtype=I32), expected_m_for_psum_layout=4)


def test_numbers_of_no_group_stand_for_none_and_there_may_be_no_groups() -> None:
    assert [t.tolist() for t in groups_of(torch.tensor([0, 1, 9], dtype=I32), 2)] == [[0, 1, 3], [1, 1]]
    assert [t.tolist() for t in groups_of(torch.zeros(0, dtype=I32), 0)] == [[0], []]


def test_flat_codes_and_their_scales_are_counted(called) -> None:
    name = "k_grouped_fp8_gemm_nt_contiguous: "
    for a, b, message in (
        (
            (FLAT[0][:-1], FLAT[1]),
            FLAT,
            r"`a` expected 4096 codes, .* and scales \[16, 2\], got 4095 and \[16, 2\]; see",
        ),
        (FLAT, (FLAT[0], FLAT[1][:, :1]), r"`b` expected 4096 codes, .* and scales \[16, 2\], got 4096 and \[16, 1\];"),
    ):
        with pytest.raises(ValueError, match=f"^{name}{message}"):
            compat.k_grouped_fp8_gemm_nt_contiguous(a, b, SUMMED, [128, 128], COUNTS)
    nothing = torch.zeros(0).to(FP8), torch.ones(0, 2)
    compat.k_grouped_fp8_gemm_nt_contiguous(nothing, FLAT, torch.zeros(2, 0, 16), [128, 128], COUNTS)
    assert not called


def test_groups_have_blocks_of_128_rows_of_b_only() -> None:
    with pytest.raises(NotImplementedError, match=r"`recipe` expected None or \(1, 128, 128\), got \(1, 1, 128\);"):
        compat.m_grouped_fp8_gemm_nt_masked(
            codes(2, 8, 256), codes(2, 256, 256), torch.zeros(2, 8, 256, dtype=BF16), torch.zeros(2, dtype=I32), 5,
            recipe=(1, 1, 128),
        )  # fmt: skip
    with pytest.raises(NotImplementedError, match=r"^bf16_gemm_nt: `d` expected bfloat16 or float32, got float16; con"):
        compat.bf16_gemm_nt(*(torch.zeros(8, 8, dtype=BF16) for _ in range(2)), torch.zeros(8, 8, dtype=torch.float16))


def test_the_op_itself_refuses_the_rest() -> None:
    with pytest.raises(NotImplementedError, match="archs: sm_90, this is cpu"):
        compat.bf16_gemm_nt(*(torch.zeros(8, 8, dtype=BF16) for _ in range(3)))


def test_rows_that_are_summed_are_counted() -> None:
    a = torch.zeros(8, 16, dtype=BF16)
    with pytest.raises(
        ValueError, match=r"`ks_cpu` expected 2 numbers whose sum is 8, got 2 with the sum 7; give each"
    ):
        compat.k_grouped_bf16_gemm_tn_contiguous(a, a, torch.zeros(2, 16, 16), [3, 4], torch.tensor([3, 4], dtype=I32))


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
    with pytest.raises(
        ValueError, match=r"`recipe` expected 2 numbers, or 3 with `is_sfa`, got \(1,\); give the blocks'"
    ):
        compat.transform_sf_into_required_layout(scales, 5, 300, (1,))
    for recipe, is_sfa, wanted, remedy in (
        ((1, 128, 128), None, "True or False", "say whether the scales are a's"),
        ((1, 128), True, "None", "leave it out"),
    ):
        message = (
            rf"^transform_sf_into_required_layout: `is_sfa` expected {wanted} beside a `recipe` of {len(recipe)} nu"
        )
        with pytest.raises(ValueError, match=rf"{message}mbers, got {is_sfa}; {remedy}$"):
            compat.transform_sf_into_required_layout(scales, 5, 300, recipe, None, is_sfa, False, None)
    with pytest.raises(NotImplementedError, match=r"`recipe` expected blocks of .* got \(1, 32\) with float32;"):
        compat.transform_sf_into_required_layout(scales, 5, 300, (1, 32))


def test_the_number_of_multiprocessors(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(multiprocessors, "units_of", lambda index: 132)
    monkeypatch.setattr(multiprocessors, "_sms", None)
    assert compat.get_num_sms() == 132
    try:
        compat.set_num_sms(100)
        assert (compat.get_num_sms(), launching._most_units) == (100, 100)
        compat.set_num_sms(0)
        assert (compat.get_num_sms(), launching._most_units) == (132, None)
    finally:
        launching.limit_units(None)
    with pytest.raises(ValueError, match=r"^set_num_sms: `new_num_sms` expected a number from 0 to 132, got 133$"):
        compat.set_num_sms(133)
    assert compat.get_mk_alignment_for_contiguous_layout() == 128
