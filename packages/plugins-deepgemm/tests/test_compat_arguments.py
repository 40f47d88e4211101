"""What DeepGEMM's names say of arguments of wrong kinds, ranks and numbers: their own name first."""

import re
from typing import Any

import numpy as np
import pytest
import torch

from opmux_deepgemm import compat

BF16, FP8, I32 = torch.bfloat16, torch.float8_e4m3fn, torch.int32


def codes(*shape: int, rows: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    *groups, m, k = shape
    return torch.zeros(shape).to(FP8), torch.ones(*groups, -(-m // rows), -(-k // 128))


def bf16(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=BF16)


COUNTS = torch.tensor([128, 128], dtype=I32)
FLAT = torch.zeros(256 * 16).to(FP8), torch.ones(16, 2)
SUMS = codes(256, 16)[0], torch.ones(2, 16)
D, DS = torch.zeros(4, 256), torch.zeros(2, 16, 16)


def given_to(name: str) -> dict[str, Any]:
    """Arguments that fit a product."""
    scaled = name.startswith(("fp8", "m_grouped_fp8", "k_grouped_fp8"))
    if name.startswith("k_grouped"):
        operand = FLAT if "fp8_gemm_nt" in name else SUMS if scaled else bf16(256, 16)
        return {"a": operand, "b": operand, "d": DS.clone(), "ks_cpu": [128, 128], "grouped_layout": COUNTS}
    groups = (2,) if name.startswith("m_grouped") else ()
    of_a = groups if name.endswith("masked") else ()
    a: Any = codes(*of_a, 4, 256) if scaled else bf16(*of_a, 4, 256)
    b: Any = codes(*groups, 256, 256, rows=128) if scaled else bf16(*groups, 256, 256)
    if "_tn" in name or "_tt" in name:
        a = tuple(t.mT for t in a) if scaled else a.mT
    if "_nn" in name or "_tn" in name:
        b = tuple(t.mT for t in b) if scaled else b.mT
    given = {"a": a, "b": b, "d": bf16(*of_a, 4, 256)}
    if of_a:
        return given | {"masked_m": torch.tensor([4, 2], dtype=I32), "expected_m": 3}
    return given | ({"grouped_layout": torch.zeros(4, dtype=I32)} if groups else {})


PRODUCTS = [name for name in compat.__all__ if "_gemm_" in name]


@pytest.mark.parametrize("wrong", [None, 3, "rank 0", [torch.zeros(4)]])
@pytest.mark.parametrize("name", PRODUCTS)
def test_tensors_of_other_kinds_and_ranks_are_refused_by_name(name, wrong) -> None:
    given = given_to(name)
    for argument, fits in given.items():
        if argument in ("ks_cpu", "expected_m"):
            continue
        pair = isinstance(fits, tuple)
        one = torch.zeros(4).to(FP8 if pair else fits.dtype) if wrong == "rank 1" else wrong
        for bad in (one, (one, one), (one, fits[1]), (fits[0], one)) if pair else (one,):
            with pytest.raises(ValueError, match=rf"^{name}: `{argument}` expected ") as caught:
                getattr(compat, name)(**given | {argument: bad})
            assert "got " in str(caught.value)
            assert "; " in str(caught.value)
    if "_contiguous" not in name and "masked" not in name and wrong is not None:
        with pytest.raises(ValueError, match=rf"^{name}: `c` expected "):
            getattr(compat, name)(**given, c=torch.zeros(()) if wrong == "rank 0" else wrong)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("fp8_gemm_nt", {"d": None}, "`d` expected a tensor of rank 2, got NoneType; pass one"),
        ("fp8_gemm_nt", {"d": D[0]}, "`d` expected rank 2, got shape [256]; reshape it"),
        ("bf16_gemm_nn", {"b": bf16(256)}, "`b` expected rank 2, got shape [256]; reshape it"),
        (
            "fp8_gemm_nn", {"b": (codes(256, 256)[0], torch.ones(2))},
            "`b` expected codes and scales of rank 2, got shapes [256, 256] and [2]; reshape them",
        ),
        (
            "fp8_gemm_nt", {"recipe": 128},
            "`recipe` expected None or 3 numbers, got 128; give the rows of the blocks of a and of b, and their "
            "columns",
        ),
        (
            "fp8_gemm_nt", {"recipe": (1, "128", 128)},
            "`recipe` expected None or 3 numbers, got (1, '128', 128); give the rows of the blocks of a and of b, and "
            "their columns",
        ),
        (
            "fp8_gemm_nt", {"recipe_a": (1,), "recipe_b": (1, 128)},
            "`recipe_a` expected None or 2 numbers, got (1,); give the rows and columns of a's blocks",
        ),
        (
            "fp8_gemm_nt", {"recipe_a": (1, 128), "recipe_b": 128},
            "`recipe_b` expected None or 2 numbers, got 128; give the rows and columns of b's blocks",
        ),
        ("fp8_gemm_nt", {"compiled_dims": None}, "`compiled_dims` expected letters of 'mnk', got None"),
        (
            "bf16_gemm_nt", {"b": bf16(256, 128)},
            "`b` expected k = 256 on cpu, as `a` has, got k = 128 on cpu; give both the same",
        ),
        (
            "cublaslt_gemm_nt", {"b": bf16(256, 128)},
            "`b` expected k = 256 on cpu, as `a` has, got k = 128 on cpu; give both the same",
        ),
        (
            "cublaslt_gemm_nt", {"b": torch.zeros(256, 256, dtype=BF16, device="meta")},
            "`b` expected k = 256 on cpu, as `a` has, got k = 256 on meta; give both the same",
        ),
        (
            "cublaslt_gemm_nt", {"c": torch.zeros(4, 256, dtype=BF16, device="meta")},
            "`c` expected a tensor on cpu, as d is, got one on meta; move it",
        ),
        (
            "m_grouped_bf16_gemm_nt_contiguous", {"grouped_layout": [0, 0, 0, 0]},
            "`grouped_layout` expected int32[4], the group of each row of `a`, got list; see `use_psum_layout`",
        ),
        (
            "k_grouped_bf16_gemm_tn_contiguous", {"grouped_layout": [128, 128]},
            "`grouped_layout` expected int32[2], how many rows each group of `d` has, got list; give the numbers of "
            "`ks_cpu` as such",
        ),
        (
            "k_grouped_bf16_gemm_tn_contiguous", {"ks_cpu": ["4", 252]},
            "`ks_cpu` expected whole numbers from 0, got ['4', 252]; give how many rows each group has",
        ),
        (
            "k_grouped_bf16_gemm_tn_contiguous", {"ks_cpu": 256},
            "`ks_cpu` expected whole numbers from 0, got 256; give how many rows each group has",
        ),
    ],
)  # fmt: skip
def test_what_is_said(name, wrong, message) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(f'{name}: {message}')}$"):
        getattr(compat, name)(**given_to(name) | wrong)


@pytest.mark.parametrize("name", [name for name in compat.__all__ if name.startswith("k_grouped")])
def test_groups_that_are_summed_are_those_of_the_result(name) -> None:
    given = given_to(name)
    few, long = {"ks_cpu": [256], "grouped_layout": COUNTS[:1] * 2}, COUNTS.long()
    whole = r"int32\[{}\], how many rows each group of `d` has, got {}; give the numbers of `ks_cpu` as such$"
    for wrong, message in (
        (few, "`grouped_layout` expected " + whole.format(2, r"int32\[1\]")),
        ({"d": torch.full((1, 16, 16), 7.0)}, "`grouped_layout` expected " + whole.format(1, r"int32\[2\]")),
        ({"grouped_layout": long}, "`grouped_layout` expected " + whole.format(2, r"int64\[2\]")),
        (
            {"ks_cpu": [256]},
            "`ks_cpu` expected 2 numbers whose sum is 256, got 1 with the sum 256; give each group's r",
        ),
        ({"ks_cpu": [256, 0, 0]}, "`ks_cpu` expected 2 numbers whose sum is 256, got 3 with the sum 256; give each gr"),
        ({"ks_cpu": [384, -128]}, r"`ks_cpu` expected whole numbers from 0, got \[384, -128\]; give how many rows ea"),
    ):
        arguments = {**given, "d": torch.full_like(DS, 7.0), **wrong}
        with pytest.raises(ValueError, match=rf"^{name}: {message}"):
            getattr(compat, name)(**arguments)
        assert bool((arguments["d"] == 7).all())


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        (
            "get_mn_major_tma_aligned_tensor", (torch.ones(4),),
            "`sf` expected a tensor of rank 2 or more, got shape [4]; see its docstring",
        ),
        (
            "get_col_major_tma_aligned_tensor", (None,),
            "`sf` expected a tensor of rank 2 or more, got NoneType; see its docstring",
        ),
        (
            "get_mn_major_tma_aligned_packed_ue8m0_tensor", (torch.ones(4),),
            "`sf` expected a tensor of rank 2 or more, got shape [4]; see its docstring",
        ),
        ("get_tma_aligned_size", (4, 0), "`element_size` expected a number from 1 to 16, got 0"),
        ("get_tma_aligned_size", (4, 32), "`element_size` expected a number from 1 to 16, got 32"),
        ("get_tma_aligned_size", (None, 4), "`size` expected a number from 0, got None"),
        (
            "transform_sf_into_required_layout", (torch.ones(4, 2), 4, 256, 128),
            "`recipe` expected 2 numbers, or 3 with `is_sfa`, got 128; give the blocks' rows and columns",
        ),
        (
            "transform_sf_into_required_layout", (None, 4, 256, (1, 128)),
            "`sf` expected a tensor of rank 2 or more, got NoneType; see its docstring",
        ),
        (
            "transform_sf_into_required_layout", (torch.ones(4, 2), None, 256, (1, 128)),
            "`mn` expected a number from 0, got None",
        ),
        (
            "transform_sf_into_required_layout", (torch.ones(4, 2), 4, "k", (1, 128)),
            "`k` expected a number from 0, got 'k'",
        ),
        ("set_mk_alignment_for_contiguous_layout", (None,), "`alignment` expected a number from 1, got None"),
        (
            "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor", (torch.ones(2), COUNTS, [128, 128], 128, 128),
            "`sf` expected rank 2, got shape [2]; reshape it",
        ),
        (
            "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor", (torch.ones(2, 4), COUNTS, [128, 128], 0, 128),
            "`gran_k` expected a number from 1, got 0",
        ),
        (
            "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor",
            (torch.ones(2, 4), COUNTS.long(), [128, 128], 128, 128),
            "`grouped_layout` expected int32[2], the numbers of `ks_cpu`, got int64[2]; give both of one length",
        ),
        (
            "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor", (torch.ones(2, 4), COUNTS, [-128, 128], 128, 128),
            "`ks_cpu` expected whole numbers from 0, got [-128, 128]; give how many rows each group has",
        ),
    ],
)  # fmt: skip
def test_what_is_said_of_layouts(name, given, message) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(f'{name}: {message}')}$"):
        getattr(compat, name)(*given)


def test_numbers_of_other_libraries_are_numbers() -> None:
    assert compat.get_tma_aligned_size(np.int64(5), np.int32(4)) == 8
    given = given_to("k_grouped_bf16_gemm_tn_contiguous") | {"ks_cpu": np.array([128, 128])}
    with pytest.raises(NotImplementedError, match="archs: sm_90, this is cpu"):
        compat.k_grouped_bf16_gemm_tn_contiguous(**given)
    given = given_to("fp8_gemm_nt") | {"recipe": tuple(np.array([1, 128, 128]))}
    with pytest.raises(NotImplementedError, match="archs: sm_90, this is cpu"):
        compat.fp8_gemm_nt(**given)
