"""Products of groups of rows of codes: built, their machine code checked, run on the emulator."""

import pytest
import torch
from building import check_kernel, entry_of

import opmux
from opmux_ck.gemm.choice import GROUPED_BLOCK_TILES, GROUPED_CODES_TILES
from opmux_ck.gemm.configs import BlockCodesConfig
from opmux_ck.gemm.grouped_targets import grouped_product_of, scaled_grouped_linear, scaled_masked_grouped_linear
from opmux_emulator.codeobject.program import Program
from opmux_emulator.isa.matrix import shape_of
from opmux_emulator.jit_launches import on

BF16, FNUZ = torch.bfloat16, torch.float8_e4m3fnuz
OPTIONS = {"out_dtype": BF16}
CASES = (
    *((tile, dtype) for tile in GROUPED_CODES_TILES for dtype in (FNUZ, torch.int8)),
    *((tile, dtype) for tile in GROUPED_BLOCK_TILES for dtype in (FNUZ, torch.int8)),
)


def drawn(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Codes."""
    return (torch.randn(shape) * (40 if dtype is torch.int8 else 1)).clamp(-127, 127).to(dtype)


@pytest.mark.parametrize(
    ("config", "dtype"), CASES, ids=[grouped_product_of(dtype, 512, config, BF16).name for config, dtype in CASES]
)
def test_its_machine_code_and_results(config, dtype) -> None:
    """Empty groups, groups that end within a tile, with padding between them and without, and room for each."""
    blocks = isinstance(config, BlockCodesConfig)
    n, k = (248 if blocks else 2 * config.n - 8), 3 * config.k - 16
    instance = grouped_product_of(dtype, k, config, BF16)
    check_kernel(instance)
    _, code = Program(entry_of(instance).code).code
    names = [line.name for line in code if shape_of(line.name)]
    assert names
    assert all(name.endswith("_i8" if dtype is torch.int8 else "_fp8_fp8") for name in names)
    m = 2 * config.m + 40
    x, w = drawn(dtype, m, k), drawn(dtype, 4, n, k)
    x_scale, w_scale = (torch.rand(shape) + 0.5 for shape in (((m, 3), (4, 2, 3)) if blocks else ((m, 1), (4, n, 1))))
    starts = (0, config.m + 6, config.m + 6, 2 * config.m + 30, m - 2)
    offsets = torch.tensor(starts, dtype=torch.int32)
    sizes = torch.tensor([config.m + 1, 0, config.m, 7], dtype=torch.int32)
    for given in (None, sizes):
        with on("gfx942"):
            found = scaled_grouped_linear(x, w, offsets, x_scale, w_scale, given, **OPTIONS, config=config)
        expected = opmux.scaled_grouped_linear(x, w, offsets, x_scale, w_scale, given, **OPTIONS, backend="reference")
        for group, start in enumerate(starts[:-1]):
            rows = slice(start, starts[group + 1] if given is None else start + int(given[group]))
            torch.testing.assert_close(found[rows], expected[rows], rtol=2**-7, atol=1e-3)
    room, counts = drawn(dtype, 4, 50, k), torch.tensor([50, 0, 17, 3], dtype=torch.int32)
    scales = (torch.rand(4, x_scale.shape[1], 50) + 0.5).mT, w_scale
    with on("gfx942"):
        found = scaled_masked_grouped_linear(room, w, counts, *scales, expected_m=20, **OPTIONS, config=config)
    expected = opmux.scaled_masked_grouped_linear(
        room, w, counts, *scales, expected_m=20, **OPTIONS, backend="reference"
    )
    for group, count in enumerate(counts.tolist()):
        torch.testing.assert_close(found[group, :count], expected[group, :count], rtol=2**-7, atol=1e-3)
