"""What the emulator counts of the products' loops: bank conflicts, and the model's share of matrix instructions."""

import numpy as np
import pytest

from opmux_asm.kernels.operands import Operands
from opmux_asm.kernels.products import TILES, Product
from opmux_asm.objects.toolchain import assemble
from opmux_asm.writer import module
from opmux_emulator import Memory, Program, Report, launch

K_BYTES = 1024


def report(arch: str, dtype: str, rows: int, columns: int) -> Report:
    """A launch of one workgroup."""
    operands = Operands(arch, dtype, "bf16" if dtype in ("int8", "fp8") else dtype)
    text = module("k", arch, [Product("k", operands, rows, columns).write()], "test")
    memory = Memory()
    x, w = (memory.add(np.zeros((size, K_BYTES), "u1")) for size in (rows, columns))
    bytes_of = (4 * columns, 2 * rows * columns, 4 * rows, 4 * columns)
    bias, y, x_scale, w_scale = (memory.add(np.zeros(size, "u1")) for size in bytes_of)
    sizes = (rows, columns, K_BYTES // operands.bytes, K_BYTES, K_BYTES, 0)
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


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_no_tile_has_bank_conflicts(arch: str, tile: tuple[int, int]) -> None:
    assert report(arch, "bf16", *tile).counts.lds_conflict_cycles == 0
