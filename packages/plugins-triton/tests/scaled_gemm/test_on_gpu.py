"""Scaled products on a GPU: every tile of the Gluon kernel, the portable kernel, and what is chosen."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from scaled_arguments import BLOCKS, codes, scales

import opmux
from opmux.errors import UnsupportedCall
from opmux_triton.devices import units
from opmux_triton.gemm.cuts import even_shares
from opmux_triton.launch import recording
from opmux_triton.scaled_gemm import hopper_heuristics, hopper_targets
from opmux_triton.scaled_gemm.hopper_configs import BLOCK_K
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


def of_matrix_units(x: torch.Tensor, w: torch.Tensor, columns: int) -> torch.Tensor:
    """A product of positive codes whose sums stay in Hopper's matrix units for ``columns`` of k; float32 adds them up.

    An instruction adds 32 products to a sum. Each of the 33 terms is cut below the 13th binary place of the largest,
    and so is what they add up to. On an H200, 99.98 % of this kernel's sums of 512 to 4096 columns, and of cuBLAS's
    with ``use_fast_accum``, are equal to these; of this kernel's sums of 16384 columns 94 % (2026-11-28).
    """
    out = torch.zeros(x.shape[0], w.shape[0], device=x.device)
    for first in range(0, x.shape[1], columns):
        total = torch.zeros_like(out, dtype=torch.float64)
        for at in range(first, first + columns, 32):
            products = x[:, None, at : at + 32].double() * w[None, :, at : at + 32].double()
            terms = torch.cat([total[..., None], products], -1)
            total = cut(terms, terms.amax(-1, keepdim=True)).sum(-1)
            total = cut(total, total)
        out += total.float()
    return out


def cut(values: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    """Values without what is below the 13th binary place of the largest, which is positive."""
    place = torch.exp2(largest.log2().floor() - 13)
    return torch.trunc(values / place) * place


def one_sign(k: int) -> tuple[torch.Tensor, ...]:
    """Codes whose products are all positive, so that what sums lose adds up, and scales of one."""
    x, w = (torch.rand(rows, k, device="cuda").add_(0.5).to(torch.float8_e4m3fn) for rows in (128, 256))
    return x, w, torch.ones(128, 1, device="cuda"), torch.ones(256, 1, device="cuda")


def test_long_sums_keep_their_accuracy_and_the_fast_form_is_chosen_by_name_alone() -> None:
    """Terms of one sign: the accumulator's 14 bits show.

    On average a term loses half of a last place, which is at most 2**-14 of the sum so far, and that sum is half of the
    final one: 2**-15 of it for each column.
    """
    x, w, *ones = one_sign(16384)
    expected = opmux.scaled_linear.reference(x, w, *ones, out_dtype=torch.float32)
    for backend in IMPLEMENTATIONS:
        found = opmux.scaled_linear(x, w, *ones, out_dtype=torch.float32, backend=backend)
        assert float(((found - expected) / expected).abs().max()) < 2**-10, backend
    found = opmux.scaled_linear(x, w, *ones, out_dtype=torch.float32, backend="triton:hopper_fast")
    product = Sizes(128, 256, 16384, blockwise=False, by_weight_row=True)
    config = hopper_heuristics.config(hopper_heuristics.best(product), product)
    tiles = (128 // config.block_m) * (256 // config.block_n)
    assert (config.cut, 128 % config.block_m, config.swap) == ("all", 0, False)
    columns = even_shares(tiles, 16384 // BLOCK_K, units(x))[0] * BLOCK_K
    assert 2**-9 < float(((found - expected) / expected).abs().max()) < columns * 2**-15
    assert float(((found - of_matrix_units(x, w, columns)) / expected).abs().max()) < 2**-10
    plan: Any = opmux.explain(opmux.scaled_linear, x, w, *ones, out_dtype=torch.float32)
    assert "hopper_fast" not in str(plan.chosen)


@pytest.mark.parametrize("k", [512, 2048, 4096, 16384])
def test_sums_of_the_fast_form_are_those_of_the_matrix_units(k: int) -> None:
    """2048 columns: up to 2**-4 off, as `columns * 2**-15` says; cuts along k would shorten the sums."""
    x, w, *ones = one_sign(k)
    expected = opmux.scaled_linear.reference(x, w, *ones, out_dtype=torch.float32)
    product = Sizes(128, 256, k, blockwise=False, by_weight_row=True)
    config = replace(hopper_heuristics.config(hopper_heuristics.best(product), product), cut="none")
    found = hopper_targets.fast_scaled_linear(x, w, *ones, None, out_dtype=torch.float32, config=config)
    assert float(((found - expected) / expected).abs().max()) < k * 2**-15
    assert float(((found - of_matrix_units(x, w, k)) / expected).abs().max()) < 2**-10


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
