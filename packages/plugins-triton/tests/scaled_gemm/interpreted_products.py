"""Run by `scaled_gemm/test_targets` under TRITON_INTERPRET=1: products whose tiles and parts end anywhere."""

import itertools
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

from scaled_arguments import BLOCKS, codes, scales

import opmux
from opmux_triton.scaled_gemm import targets
from opmux_triton.scaled_gemm.configs import ScaledConfig

torch.manual_seed(0)
SMALL: dict[str, Any] = {"num_warps": 1, "num_stages": 1, "group": 2}
CONFIGS = (
    ScaledConfig(block_m=16, block_n=16, block_k=32, **SMALL),
    ScaledConfig(block_m=16, block_n=32, block_k=128, swap=True, parts=3, **SMALL),
    ScaledConfig(block_m=32, block_n=256, block_k=64, parts=2, xcds=2, **SMALL),
)
DTYPES = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz, torch.int8)
SIZES = (((), 19, 150, 272), ((3,), 5, 33, 300), ((2, 3), 1, 17, 40))

for place, (config, dtype, blocks) in enumerate(itertools.product(CONFIGS, DTYPES, BLOCKS)):
    batch, m, n, k = SIZES[place % len(SIZES)]
    x, w = codes(*batch, m, k, dtype=dtype), codes(n, k, dtype=dtype)
    x_scale, w_scale = scales(blocks, batch, m, n, k)
    bias = torch.randn(n)
    what = f"{config} {dtype} {blocks} {batch} {m} {n} {k}"
    within: dict[str, Any] = {"rtol": 1e-5, "atol": 0.05 if dtype == torch.int8 else 1e-3}
    options: dict[str, Any] = {"out_dtype": torch.float32}
    if place % 2:
        x_scale = x_scale.mT.contiguous().mT  # as a consumer that reads columns of scales has them
    found = targets.scaled_linear(x, w, x_scale, w_scale, bias, **options, config=config)
    expected = opmux.scaled_linear.reference(x, w, x_scale, w_scale, bias, **options)
    torch.testing.assert_close(found, expected, **within, msg=lambda text, what=what: f"{what}: {text}")
    if not batch:
        start = torch.randn(m, 2 * n)[:, ::2]
        out = start.clone(memory_format=torch.preserve_format)
        wide = torch.full((m, 2 * n), 7.0)
        wide[:, ::2] = start
        targets.scaled_linear_accumulate(wide[:, ::2], x, w, x_scale, w_scale, config=config)
        opmux.scaled_linear_accumulate.reference(out, x, w, x_scale, w_scale)
        torch.testing.assert_close(wide[:, ::2], out, **within)
        assert (wide[:, 1::2] == 7.0).all(), what

# Leading dims with more strides than the kernel takes, and matrices whose scales are slices of larger tensors.
whole = codes(4, 6, 4, 6, 160, dtype=torch.float8_e4m3fn)
x, w = whole[:2, :3, :2, :5, :150], codes(20, 160, dtype=torch.float8_e4m3fn)[:, :150]
for blocks in BLOCKS:
    x_scale, w_scale = scales(blocks, (4, 6, 4), 5, 20, 150)
    given = x, w, x_scale[:2, :3, :2], w_scale, None
    found = targets.scaled_linear(*given, out_dtype=torch.bfloat16, config=CONFIGS[1])
    torch.testing.assert_close(found, opmux.scaled_linear.reference(*given, out_dtype=torch.bfloat16))

# int8 sums that int32 does not hold.
x, w = (torch.full(size, -128, dtype=torch.int8) for size in ((1, 140000), (2, 140000)))
ones = torch.ones(1, 1)
deep = ScaledConfig(block_m=16, block_n=16, block_k=128, **SMALL)
found = targets.scaled_linear(x, w, ones, ones, None, out_dtype=torch.float32, config=deep)
torch.testing.assert_close(found, torch.full((1, 2), 128.0 * 128 * 140000))
sys.stdout.write("all equal")
