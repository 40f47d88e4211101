"""Run by `gemm/test_products` under TRITON_INTERPRET=1: products by descriptors, cut along k."""

import itertools
import sys
from dataclasses import replace
from typing import Any

import torch

from opmux_triton.gemm.configs import TileChange, TilesConfig
from opmux_triton.gemm.operands import Operand, matrix_of
from opmux_triton.gemm.products import product

torch.manual_seed(0)
SMALL = TilesConfig(
    tma=True, store="descriptor", block_m=16, block_n=32, block_k=16, group=2, sum_rows=8,
    otherwise=TileChange(block_n=16, block_k=32), num_warps=1, num_stages=1,
)  # fmt: skip
SIZES = ((33, 64, 64), (17, 160, 240), (48, 33, 17))
OVERRIDES: tuple[dict[str, Any], ...] = (
    {},
    {"cut_rest": True},
    {"cut_rest": True, "flatten": True, "parts": 2},
    {"cut_rest": True, "swap": True},
    {"kind": "shares"},
    {"kind": "shares", "swap": True},
    {"tma": False, "uneven": TileChange(block_k=32, block_n=16)},
)


def operand(matrix: torch.Tensor, turned: bool, transposed: bool) -> Operand:
    """A matrix, or the same one as its own transpose's transpose."""
    return matrix_of(matrix.t(), not turned) if transposed else matrix_of(matrix, turned)


for (m, n, k), over, a_turned, b_turned, transposed in itertools.product(
    SIZES, OVERRIDES, (False, True), (False, True), (False, True)
):
    a = torch.randn((k, m) if a_turned else (m, k), dtype=torch.float16)
    b = torch.randn((k, n) if b_turned else (n, k), dtype=torch.float16)
    bias = torch.randn(n, dtype=torch.float16)
    out = torch.full((m, n), float("nan"), dtype=torch.float16)
    operands = (operand(a, a_turned, transposed), operand(b, b_turned, transposed))
    product(*operands, bias, out, (m, n, k), replace(SMALL, **over))
    exact = (a.T if a_turned else a).double() @ (b if b_turned else b.T).double() + bias.double()
    torch.testing.assert_close(
        out.double(), exact, rtol=2e-3, atol=2e-3, msg=f"{m} {n} {k} {over} {a_turned} {b_turned} {transposed}"
    )
sys.stdout.write("all equal")
