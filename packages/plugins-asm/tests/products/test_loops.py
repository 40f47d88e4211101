"""What the emulator counts of the products' loops: bank conflicts, and the model's share of matrix instructions."""

import numpy as np
import pytest

from opmux_asm.kernels.block_products import TILES as BLOCK_TILES
from opmux_asm.kernels.block_products import BlockProduct
from opmux_asm.kernels.operands import Operands
from opmux_asm.kernels.products import TILES, Product
from opmux_asm.objects.toolchain import assemble
from opmux_asm.products.configs import BUSY, BUSY_BLOCKS
from opmux_asm.writer import module
from opmux_emulator import Memory, Program, Report, launch

K_BYTES = 2048


def report(arch: str, dtype: str, rows: int, columns: int, kind: type[Product] = Product) -> Report:
    """A launch of one workgroup."""
    operands = Operands(arch, dtype, "bf16" if dtype in ("int8", "fp8") else dtype)
    text = module("k", arch, [kind("k", operands, rows, columns).write()], "test")
    memory = Memory()
    x, w = (memory.add(np.zeros((size, K_BYTES), "u1")) for size in (rows, columns))
    blocks = K_BYTES // 128
    bytes_of = (4 * columns, 2 * rows * columns, 4 * rows * blocks, 4 * columns * blocks)
    bias, y, x_scale, w_scale = (memory.add(np.zeros(size, "u1")) for size in bytes_of)
    sizes = (rows, columns, K_BYTES // operands.bytes, K_BYTES, K_BYTES, 0)
    sizes += (4, 4 * rows, 4 * blocks, 4) if kind is BlockProduct else ()
    arguments = [x, w, bias, y, x_scale, w_scale, *map(np.uint32, sizes)]
    return launch(Program(assemble(text, arch, "k")), "k", (1,), (256,), arguments, memory=memory, model=True)


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("dtype", ["bf16", "f16", "fp8", "int8"])
def test_the_largest_tile_keeps_the_matrix_unit_busy(arch: str, dtype: str) -> None:
    found = report(arch, dtype, 256, 256)
    assert found.counts.lds_conflict_cycles == 0
    assert found.schedule is not None
    assert found.schedule.loop is not None
    assert found.schedule.loop.mfma_utilisation >= 0.95


def compare(found: Report, busy: float) -> None:
    """The config's constant, and the conflicts."""
    assert found.counts.lds_conflict_cycles == 0
    assert found.schedule is not None
    assert found.schedule.loop is not None
    assert round(found.schedule.loop.mfma_utilisation, 3) == pytest.approx(busy, abs=0.0011), "see products/configs.py"


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_tile_is_as_busy_as_its_config_says(arch: str, tile: tuple[int, int]) -> None:
    compare(report(arch, "bf16", *tile), BUSY[arch][tile])


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("tile", BLOCK_TILES, ids=str)
def test_every_tile_with_scales_of_blocks_too(arch: str, tile: tuple[int, int]) -> None:
    compare(report(arch, "fp8", *tile, kind=BlockProduct), BUSY_BLOCKS[arch][tile])
