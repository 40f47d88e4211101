"""Kernels of rows on the emulator, through the native launcher, against the references."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import opmux
from opmux.plugin import parse_arch
from opmux_asm.kernels.recipes import FAMILIES, TILES, Recipe, recipes
from opmux_asm.row_ops import targets
from opmux_asm.row_ops.configs import RowsConfig, for_row, rows_config
from opmux_emulator.jit_launches import on

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
TOLERANCE = {torch.bfloat16: 2**-7, torch.float16: 2**-10, torch.float32: 2**-18}
FP8 = {"gfx942": torch.float8_e4m3fnuz, "gfx950": torch.float8_e4m3fn}


def covering() -> Iterator[tuple[str, Recipe, tuple[int, int]]]:
    """Every recipe of every family, with one tile after the other; every tile of every dtype for `rms_norm`."""
    tiles = itertools.cycle(TILES)
    for family in FAMILIES:
        for recipe in recipes(family):
            yield family, recipe, next(tiles)
    yield from (("rms_norm", recipe, tile) for recipe in recipes("rms_norm") for tile in TILES)


def call_of(family: str, recipe: Recipe, columns: int, arch: str) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Tensors and options of a call that the kernel takes."""
    dtype = DTYPES[recipe.x]
    tensors = [torch.randn(2, columns * (1 + recipe.gates)).to(dtype)]
    tensors += [torch.randn(2, columns).to(dtype)] * recipe.adds
    tensors += [torch.randn(columns).to(DTYPES[recipe.weight]) for _ in range(bool(recipe.norm) + recipe.biased)]
    options: dict[str, Any] = {}
    if recipe.codes:
        options["dtype"] = torch.int8 if recipe.codes == "int8" else FP8[arch]
        options["block"] = (1, -1) if recipe.block == "token" else (1, 128)
    if recipe.norm:
        options["eps"] = 1e-5
    if recipe.norm == "rms":
        options["weight_offset"] = 0.5
    return tensors, options


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_recipe_at_the_longest_row(family: str, arch: str) -> None:
    op, target = getattr(opmux, family), getattr(targets, family)
    with on(arch):
        for name, recipe, tile in covering():
            if name != family:
                continue
            config = RowsConfig(*tile)
            columns = config.bytes // DTYPES[recipe.x].itemsize - 8  # the last access lies past the row
            tensors, options = call_of(family, recipe, columns, arch)
            expected = op(*tensors, **options, backend="reference")
            extra = {"scale_major": "k"} if recipe.codes else {}
            if family == "layer_norm" and not recipe.biased:
                tensors.append(None)  # type: ignore[arg-type]
            found = target(*tensors, **options, **extra, config=config)
            compare(found, expected, recipe, tensors[0])


def compare(found: Any, expected: Any, recipe: Recipe, x: torch.Tensor) -> None:
    """Values within a rounding; codes by what they stand for, within half a step of the coarsest code."""
    if not recipe.codes:
        for one, other in zip(*((t,) if isinstance(t, torch.Tensor) else t for t in (found, expected)), strict=True):
            torch.testing.assert_close(one, other, rtol=TOLERANCE[x.dtype], atol=1e-5)
        return
    torch.testing.assert_close(found[1], expected[1], rtol=2**-21, atol=0)
    codes = [t.view(torch.uint8).int() if t.is_floating_point() else t.int() for t in (found[0], expected[0])]
    assert (codes[0] != codes[1]).float().mean().item() <= 0.001, recipe
    if len(found) > 2:
        assert torch.equal(found[2], expected[2])


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_tiny_rows_and_no_eps(arch: str) -> None:
    """The mean square is below what v_rsq_f32 takes without flushing it to zero."""
    x = torch.randn(3, 64) * 1e-19
    with on(arch):
        y = opmux.rms_norm(x, torch.ones(64), eps=0.0, backend="asm")
    double = x.double()
    torch.testing.assert_close(y.double(), double * double.square().mean(-1, keepdim=True).rsqrt(), rtol=1e-3, atol=0)


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("codes", ["fp8", "int8"])
def test_scales_that_are_subnormal_zero_or_infinite(arch: str, codes: str) -> None:
    dtype = torch.int8 if codes == "int8" else FP8[arch]
    x = torch.randn(6, 256) * torch.tensor([[1e-40], [1e-44], [0.0], [1e30], [1.0], [1.0]])
    x[4, 3], x[5, 3] = torch.inf, torch.nan
    with on(arch):
        for block in ((1, 128), (1, -1)):
            q, scale = opmux.quantize(x, dtype=dtype, block=block, backend="asm")
            expected_q, expected = opmux.quantize(x, dtype=dtype, block=block, backend="reference")
            torch.testing.assert_close(scale, expected, rtol=2**-21, atol=3e-45)
            for row in (2, 3, 4, 5):
                same = q[row].float().nan_to_num(1e9) == expected_q[row].float().nan_to_num(1e9)
                assert same.float().mean().item() >= 0.99


def test_rows_with_strides() -> None:
    x = torch.randn(4, 6, 64)
    weight = torch.randn(32)
    with on("gfx942"):
        for view in (x[:, :, :32], x[:, 2, 32:], x.transpose(0, 1)[..., :32], x[:1, :1, :32].expand(3, 2, 32)):
            y = opmux.rms_norm(view, weight, backend="asm")
            assert y.is_contiguous()
            torch.testing.assert_close(y, opmux.rms_norm(view, weight, backend="reference"))


def test_the_smallest_tile_that_holds_the_row_is_taken() -> None:
    arch = parse_arch("gfx942")
    chosen = [rows_config(arch, {"hidden": n}) for n in (8, 512, 520, 4096, 8192, 16384)]
    assert [(c.waves, c.chunks) for c in chosen] == [(1, 1), (1, 1), (4, 1), (4, 2), (4, 4), (16, 2)]
    assert for_row(chosen[0], 4 * 512) == RowsConfig(4, 1)
    assert for_row(chosen[0], 1024) is chosen[0]


def test_a_config_that_no_kernel_has() -> None:
    with pytest.raises(ValueError, match=r"^waves and chunks expected one of .*, got \(3, 1\)$"):
        RowsConfig(3, 1)
