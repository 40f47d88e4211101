"""Scaled products on a GPU: every tile of the Gluon kernel, the portable kernel, and what is chosen."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from scaled_arguments import BLOCKS, codes, scales

import opmux
from opmux.errors import UnsupportedCall
from opmux_triton.launch import recording
from opmux_triton.scaled_gemm import hopper_heuristics, hopper_targets
from opmux_triton.scaled_gemm.hopper_heuristics import Sizes

SIZES = ((333, 1032, 2192), (72, 200, 144), (1, 264, 1040), (20, 1544, 16384))
"""Products that no tile divides."""
IMPLEMENTATIONS = ("triton", "triton:hopper")
pytestmark = pytest.mark.gpu


def near(found: torch.Tensor, expected: torch.Tensor, least: float = 4e-3) -> None:
    """The difference is small beside what was expected."""
    apart = float((found.float() - expected.float()).norm() / expected.float().norm())
    assert apart < least, apart


def given(blocks: str, m: int, n: int, k: int, dtype: torch.dtype = torch.float8_e4m3fn) -> tuple[torch.Tensor, ...]:
    x, w = codes(m, k, dtype=dtype, device="cuda"), codes(n, k, dtype=dtype, device="cuda")
    return (x, w, *scales(blocks, (), m, n, k, device="cuda"))


@pytest.mark.memcheck
@pytest.mark.parametrize("backend", IMPLEMENTATIONS)
@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_products_agree_with_the_reference(backend: str, blocks: str, out_dtype: torch.dtype) -> None:
    for sizes in SIZES:
        arguments = given(blocks, *sizes)
        if backend == "triton:hopper" and sizes[0] <= hopper_heuristics.FEW and arguments[2].shape[-1] > 1:
            with pytest.raises(UnsupportedCall, match="up to 16 rows with scales of blocks"):
                opmux.scaled_linear(*arguments, None, out_dtype=out_dtype, backend=backend)
            continue
        for bias in (None, torch.randn(sizes[1], device="cuda", dtype=torch.bfloat16)):
            found = opmux.scaled_linear(*arguments, bias, out_dtype=out_dtype, backend=backend)
            expected = opmux.scaled_linear.reference(*arguments, bias, out_dtype=torch.float32)
            assert found.dtype == out_dtype
            near(found, expected)


@pytest.mark.memcheck
@pytest.mark.parametrize("blocks", BLOCKS)
def test_every_tile_agrees_with_the_reference(blocks: str) -> None:
    for m, n, k in SIZES:
        arguments = given(blocks, m, n, k)
        bias = torch.randn(n, device="cuda")
        expected = opmux.scaled_linear.reference(*arguments, bias, out_dtype=torch.float32)
        product = Sizes(m, n, k, arguments[2].shape[-1] > 1, arguments[3].shape[0] == n)
        for choice in hopper_heuristics.choices(product):
            config = hopper_heuristics.config(choice, product)
            first = None
            for _ in range(3):
                torch.full((1 << 20,), float("nan"), device="cuda")
                found = hopper_targets.scaled_linear(*arguments, bias, out_dtype=torch.bfloat16, config=config)
                near(found, expected)
                assert first is None or torch.equal(found, first), choice
                first = found


@pytest.mark.parametrize("backend", IMPLEMENTATIONS)
@pytest.mark.parametrize("blocks", BLOCKS)
def test_products_are_added(backend: str, blocks: str) -> None:
    for m, n, k in SIZES:
        arguments = given(blocks, m, n, k)
        wide = torch.randn(m, n + 8, device="cuda")
        out, kept = wide[:, :n], wide.clone()
        expected = out.clone()
        opmux.scaled_linear_accumulate.reference(expected, *arguments)
        opmux.scaled_linear_accumulate(out, *arguments, backend=backend)
        near(out, expected, 1e-3)
        assert torch.equal(wide[:, n:], kept[:, n:])


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz])
@pytest.mark.parametrize("blocks", BLOCKS)
def test_other_formats(dtype: torch.dtype, blocks: str) -> None:
    for sizes in (*SIZES, (70, 83, 250)):
        arguments = given(blocks, *sizes, dtype=dtype)
        found = opmux.scaled_linear(*arguments, out_dtype=torch.float32, backend="triton")
        near(found, opmux.scaled_linear.reference(*arguments, out_dtype=torch.float32), 1e-3)


def test_long_sums_keep_their_accuracy_and_the_fast_form_is_chosen_by_name_alone() -> None:
    """Terms of one sign: the accumulator's 14 bits show."""
    x, w = (torch.rand(rows, 16384, device="cuda").add_(0.5).to(torch.float8_e4m3fn) for rows in (128, 256))
    ones = torch.ones(128, 1, device="cuda"), torch.ones(256, 1, device="cuda")
    expected = opmux.scaled_linear.reference(x, w, *ones, out_dtype=torch.float32)
    apart: dict[str, float] = {}
    for backend in (*IMPLEMENTATIONS, "triton:hopper_fast"):
        found = opmux.scaled_linear(x, w, *ones, out_dtype=torch.float32, backend=backend)
        apart[backend] = float(((found - expected) / expected).abs().max())
    assert apart["triton"] < 2**-10, apart
    assert apart["triton:hopper"] < 2**-10, apart
    assert 2**-9 < apart["triton:hopper_fast"] < 2**-4, apart
    plan: Any = opmux.explain(opmux.scaled_linear, x, w, *ones, out_dtype=torch.float32)
    assert "hopper_fast" not in str(plan.chosen)


def test_matrices_of_a_batch() -> None:
    x, w = (
        codes(3, 40, 512, dtype=torch.float8_e4m3fn, device="cuda"),
        codes(136, 512, dtype=torch.float8_e4m3fn, device="cuda"),
    )
    for blocks in BLOCKS:
        x_scale, w_scale = scales(blocks, (3,), 40, 136, 512, device="cuda")
        for turned in (x_scale, x_scale.mT.contiguous().mT):
            found = opmux.scaled_linear(x, w, turned, w_scale, out_dtype=torch.bfloat16, backend="triton:hopper")
            near(found, opmux.scaled_linear.reference(x, w, turned, w_scale, out_dtype=torch.float32))


def test_the_gluon_kernel_takes_what_it_can() -> None:
    arguments = [t.to("meta") for t in given("square", 64, 256, 512)]
    product = Sizes(64, 256, 512, blockwise=True, by_weight_row=False)
    config = hopper_heuristics.config(hopper_heuristics.best(product), product)
    with recording("sm_90") as recorded:
        hopper_targets.scaled_linear(*arguments, None, out_dtype=torch.bfloat16, config=config)
    assert recorded.launches[0].kernel.__name__ == "scaled_products"
