"""Run by `gemm/test_targets` under TRITON_INTERPRET=1: a few rows without matrix instructions, or by tiles."""

import itertools
import sys

import torch

from opmux_triton.gemm.configs import LinearConfig, TilesConfig, VectorsConfig
from opmux_triton.gemm.targets import linear

torch.manual_seed(0)
TILES = TilesConfig(block_m=16, block_n=16, block_k=16, num_warps=1, num_stages=1, swap=True)
SIZES = ((1, 7, 50), (2, 16, 64), (3, 5, 33), (4, 9, 0))


def config(rows: int, blocks: int) -> LinearConfig:
    """Rows of the weight and blocks of a program."""
    return LinearConfig(vectors=VectorsConfig(rows=rows, block_k=16, blocks=blocks, num_warps=1, otherwise=TILES))


for (m, n, k), (rows, blocks) in itertools.product(SIZES, ((1, 1), (1, 4), (2, 2), (3, 1))):
    x, w, bias = (torch.randn(size, dtype=torch.float16) for size in ((m, k), (n, k), (n,)))
    wide = torch.randn(m, 2 * k + 3, dtype=torch.float16)
    forms = {
        "as they are": (x, w, bias),
        "no bias": (x, w, None),
        "rows apart": (wide[:, 1 : k + 1], w, bias),
        "equal rows": (x[:1].expand(m, k), w, bias),
        "columns of w apart": (x, w.T.contiguous().T, bias),
        "columns of x apart": (wide[:, : 2 * k : 2], w, bias),
        "two strides": (torch.randn(2, 3, k, dtype=torch.float16)[:, : min(m, 2)], w, bias),
    }
    for form, (rows_of_x, weight, added) in forms.items():
        out = linear(rows_of_x, weight, added, config=config(rows, blocks))
        exact = rows_of_x.double() @ weight.double().T + (0 if added is None else added.double())
        torch.testing.assert_close(out.double(), exact, rtol=2e-3, atol=5e-3, msg=f"{m} {n} {k} {rows} {blocks} {form}")
sys.stdout.write("all equal")
