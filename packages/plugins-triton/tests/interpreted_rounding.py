"""Run by `test_rounding` under TRITON_INTERPRET=1: float32 to bfloat16, to the nearest, ties to even."""

import sys

import torch
import triton
import triton.language as tl

from opmux_triton.launch import launch
from opmux_triton.rounding import rounded


@triton.jit
def cast(x, y, count, BLOCK: tl.constexpr):
    """Rounds x to the dtype of y."""
    at = tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < count, other=0.0)
    tl.store(y + at, rounded(values, y.dtype.element_ty), mask=at < count)


torch.manual_seed(0)
TIES = torch.tensor([0x3F808000, 0x3F818000, 0x3F80FFFF, 0x00008000, 0x7F7FFFFF], dtype=torch.int32).view(torch.float32)
EDGES = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), 1e-40, -3e38])
x = torch.cat([TIES, -TIES, EDGES, torch.randn(200) * 2.0 ** torch.randint(-120, 120, (200,))])
for dtype in (torch.bfloat16, torch.float16, torch.float32):
    y = torch.empty(x.shape, dtype=dtype)
    launch(cast, (1,), (x, y, x.numel()), {"BLOCK": 256})
    assert torch.equal(y, x.to(dtype)), dtype
nan = torch.empty(2, dtype=torch.bfloat16)
launch(cast, (1,), (torch.tensor([float("nan"), -float("nan")]), nan, 2), {"BLOCK": 256})
assert nan.isnan().all()
sys.stdout.write("all equal")
