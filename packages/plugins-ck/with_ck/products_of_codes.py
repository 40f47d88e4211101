"""A product of codes, as the tests of this folder look at it."""

import torch
from building import check_kernel, entry_of

import opmux
from opmux_ck.gemm.configs import BlockCodesConfig, CodesConfig
from opmux_ck.gemm.targets import scaled_linear, scaled_product_of
from opmux_emulator.codeobject.program import Program
from opmux_emulator.isa.matrix import shape_of
from opmux_emulator.jit_launches import on

FP8 = {"gfx942": torch.float8_e4m3fnuz, "gfx950": torch.float8_e4m3fn}
"""The flavour of fp8 that an arch's instructions know."""


def check_product_of_codes(arch: str, config: CodesConfig, dtype: torch.dtype) -> None:
    """Nothing spilled, matrix instructions on codes, and results where rows, columns and k end within a tile."""
    k = 3 * config.k - 16
    instance = scaled_product_of(dtype, torch.bfloat16, k, config)
    check_kernel(instance, arch)
    _, code = Program(entry_of(instance, arch).code).code
    names = [line.name for line in code if shape_of(line.name)]
    assert names
    assert all(name.endswith("_i8" if dtype is torch.int8 else "_fp8_fp8") for name in names)
    blocks = isinstance(config, BlockCodesConfig)
    m, n = config.m + 5, (248 if blocks else 2 * config.n - 8)
    x, w = ((torch.randn(rows, k) * (40 if dtype is torch.int8 else 1)).clamp(-127, 127).to(dtype) for rows in (m, n))
    x_scale, w_scale = (torch.rand(*shape) + 0.5 for shape in (((m, 3), (2, 3)) if blocks else ((m, 1), (n, 1))))
    with on(arch):
        found = scaled_linear(x, w, x_scale, w_scale, None, out_dtype=torch.bfloat16, config=config)
    expected = opmux.scaled_linear(x, w, x_scale, w_scale, out_dtype=torch.bfloat16, backend="reference")
    torch.testing.assert_close(found, expected, rtol=2**-7, atol=1e-3)
