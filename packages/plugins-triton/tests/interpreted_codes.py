"""Run by `test_codes` under TRITON_INTERPRET=1: float32 to 8 bits, to the nearest, ties to even, saturating."""

import sys

import torch
import triton
import triton.language as tl

from opmux.dtypes import name_of
from opmux_triton.codes import encoded
from opmux_triton.launch import as_bytes, launch

LARGEST = {
    torch.float8_e4m3fn: 448.0,
    torch.float8_e4m3fnuz: 240.0,
    torch.float8_e5m2: 57344.0,
    torch.float8_e5m2fnuz: 57344.0,
    torch.int8: 127.0,
}


@triton.jit
def cast(x, q, count, FORMAT: tl.constexpr, BLOCK: tl.constexpr, FP8: tl.constexpr):
    """Converts x to the format of q."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < count, other=0.0)
    tl.store(q + at, encoded(values, FORMAT, FP8), mask=at < count)


torch.manual_seed(0)
EDGES = torch.tensor([0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1e-40, 448.0, 464.0, 465.0, -3e38])
for dtype, largest in LARGEST.items():
    codes = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    codes = codes[codes.isfinite()].sort().values
    middles = (codes[:-1] + codes[1:]) / 2  # ties, and their neighbours on either side
    near = [torch.nextafter(middles, torch.full_like(middles, side)) for side in (-1e9, 1e9)]
    x = torch.cat([codes, middles, *near, EDGES, torch.randn(500) * 2.0 ** torch.randint(-20, 20, (500,))])
    q = torch.empty(x.shape, dtype=dtype)
    launch(cast, (-(-x.numel() // 512),), (x, as_bytes(q), x.numel()), {"FORMAT": name_of(dtype), "BLOCK": 512})
    rounded = x.nan_to_num(nan=0.0).round() if dtype == torch.int8 else x
    expected = rounded.clamp(-largest, largest).to(dtype)
    assert torch.equal(q.view(torch.uint8), expected.view(torch.uint8)), dtype
sys.stdout.write("all equal")
