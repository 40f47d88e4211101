"""Products of codes: built, their machine code checked, run on the emulator."""

import itertools

import pytest
import torch
from building import check_kernel, entry_of

import opmux
from opmux_ck.gemm.choice import BLOCK_TILES, CODES_TILES, FEW_ROWS_OF_BLOCKS, FEW_ROWS_OF_CODES
from opmux_ck.gemm.configs import BlockCodesConfig
from opmux_ck.gemm.targets import scaled_linear, scaled_product_of
from opmux_emulator.codeobject.program import Program
from opmux_emulator.isa.matrix import shape_of
from opmux_emulator.jit_launches import on

TILES = (FEW_ROWS_OF_CODES, *CODES_TILES, FEW_ROWS_OF_BLOCKS, *BLOCK_TILES)
FP8 = {"gfx942": torch.float8_e4m3fnuz, "gfx950": torch.float8_e4m3fn}
CASES = [("gfx942", *pair) for pair in itertools.product(TILES, ("fp8", "int8"))]
EACH = pytest.mark.parametrize(
    ("arch", "config", "kind"),
    CASES,
    ids=[f"{arch}-{c.kernel}-{c.m}x{c.n}x{c.k}-{kind}" for arch, c, kind in CASES],
)


@EACH
def test_its_machine_code_and_results(arch, config, kind) -> None:
    """Nothing spilled, matrix instructions on codes, and results where rows, columns and k end within a tile."""
    dtype = FP8[arch] if kind == "fp8" else torch.int8
    k = 3 * config.k - 16
    instance = scaled_product_of(dtype, torch.bfloat16, k, config)
    check_kernel(instance, arch)
    _, code = Program(entry_of(instance, arch).code).code
    names = [line.name for line in code if shape_of(line.name)]
    assert names
    assert all(name.endswith("_i8" if kind == "int8" else "_fp8_fp8") for name in names)
    blocks = isinstance(config, BlockCodesConfig)
    m, n = config.m + 5, (248 if blocks else 2 * config.n - 8)
    x, w = ((torch.randn(rows, k) * (40 if kind == "int8" else 1)).clamp(-127, 127).to(dtype) for rows in (m, n))
    x_scale, w_scale = (torch.rand(*shape) + 0.5 for shape in (((m, 3), (2, 3)) if blocks else ((m, 1), (n, 1))))
    with on(arch):
        found = scaled_linear(x, w, x_scale, w_scale, None, out_dtype=torch.bfloat16, config=config)
    expected = opmux.scaled_linear(x, w, x_scale, w_scale, out_dtype=torch.bfloat16, backend="reference")
    torch.testing.assert_close(found, expected, rtol=2**-7, atol=1e-3)
