"""Products of groups of rows: built, their machine code checked, run on the emulator."""

import pytest
import torch
from building import check_kernel, entry_of

import opmux
from opmux_ck.gemm.choice import FEW_ROWS_OF_GROUPS, GROUPED_TILES
from opmux_ck.gemm.grouped_targets import grouped_linear, grouped_product_of, masked_grouped_linear
from opmux_emulator.codeobject.program import Program
from opmux_emulator.isa.matrix import shape_of
from opmux_emulator.jit_launches import on

BF16 = torch.bfloat16


@pytest.mark.parametrize("config", [FEW_ROWS_OF_GROUPS, *GROUPED_TILES], ids=lambda c: f"{c.m}x{c.n}x{c.k}")
def test_its_machine_code_and_results(config) -> None:
    """Empty groups, groups that end within a tile, with padding between them and without, and room for each."""
    n, k = 2 * config.n - 8, 3 * config.k - 16
    instance = grouped_product_of(BF16, k, config)
    check_kernel(instance)
    _, code = Program(entry_of(instance).code).code
    assert {shape.m for line in code if (shape := shape_of(line.name))} == {config.mfma}
    m = 2 * config.m + 40
    x, w = torch.randn(m, k).to(BF16), torch.randn(4, n, k).to(BF16)
    starts = (0, config.m + 6, config.m + 6, 2 * config.m + 30, m - 2)
    offsets = torch.tensor(starts, dtype=torch.int32)
    sizes = torch.tensor([config.m + 1, 0, config.m, 7], dtype=torch.int32)
    for given in (None, sizes):
        with on("gfx942"):
            found = grouped_linear(x, w, offsets, given, config=config)
        expected = opmux.grouped_linear(x, w, offsets, given, backend="reference")
        for group, start in enumerate(starts[:-1]):
            rows = slice(start, starts[group + 1] if given is None else start + int(given[group]))
            torch.testing.assert_close(found[rows], expected[rows], rtol=2**-7, atol=1e-3)
    room, counts = torch.randn(4, 50, k).to(BF16), torch.tensor([50, 0, 17, 3], dtype=torch.int32)
    with on("gfx942"):
        found = masked_grouped_linear(room, w, counts, expected_m=20, config=config)
    expected = opmux.masked_grouped_linear(room, w, counts, expected_m=20, backend="reference")
    for group, count in enumerate(counts.tolist()):
        torch.testing.assert_close(found[group, :count], expected[group, :count], rtol=2**-7, atol=1e-3)
