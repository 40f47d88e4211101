"""Run by `test_addressing` under TRITON_INTERPRET=1: rows that fold into none, one or two strides."""

import sys

import torch
import triton
import triton.language as tl

from opmux_triton.addressing import load_tile, row_starts, store_tile
from opmux_triton.launch import launch
from opmux_triton.rows import parts


@triton.jit
def copy_rows(x, y, inner, stride, outer, WIDTH: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr):
    """Copies a row of x to dense rows."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    values = load_tile(x + row_starts(row, inner, stride, outer, WIDTH) + at, at < WIDTH, WHOLE, "")
    store_tile(y + row * WIDTH + at, values, at < WIDTH, WHOLE)


torch.manual_seed(0)
WHOLE = torch.randn(4, 6, 16)
for x in (WHOLE, WHOLE[:, 0], WHOLE.flatten(0, 1)[::3], WHOLE[::2, :5], WHOLE[..., :8], WHOLE[1:, 1:4, :7]):
    ((rows, (own,)),) = parts((x,))
    width = x.shape[-1]
    y = torch.full((rows.total, width), float("nan"))
    stride = None if x.is_contiguous() else rows.stride[0]
    for block in {16, triton.next_power_of_2(width)}:
        meta = {"WIDTH": width, "BLOCK": block, "WHOLE": block == width}
        launch(copy_rows, (rows.total,), (own, y, rows.inner, stride, rows.outer[0]), meta)
        assert torch.equal(y, x.reshape(-1, width)), x.stride()
sys.stdout.write("all equal")
