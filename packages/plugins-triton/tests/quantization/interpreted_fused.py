"""Run by `quantization/test_targets` under TRITON_INTERPRET=1: rows of several blocks, one pass and two."""

import sys
from typing import Any

import torch
from interpreted_results import scattered
from torch import Tensor

import opmux
from opmux_triton.quantization import fused_targets as fused
from opmux_triton.quantization.configs import FusedConfig, QuantizeConfig

torch.manual_seed(0)
SECOND = QuantizeConfig(block=128, rows=128, parts=2, num_warps=4)
HELD = FusedConfig(block=512, rows=2, num_warps=4)
AHEAD = FusedConfig(block=512, rows=1, num_warps=4, programs=1, stages=2)
TWO_PASSES = FusedConfig(block=128, rows=1, num_warps=4, quantize=SECOND)
"""Rows of 300 columns fit into the first; the second computes them in float32 first."""
BLOCKS = ((1, 128), (1, 32), (1, -1), (-1, -1), (128, 128))


def check(op: str, tensors: tuple[Tensor, ...], block: tuple[int, int], major: str, config: FusedConfig) -> None:
    """Hold the results of a target to those of the reference."""
    options: dict[str, Any] = {"dtype": torch.float8_e4m3fn, "block": block, "scale_major": major}
    if "norm" in op:
        options |= {"eps": 1e-6, "weight_offset": 0.5}
    q, scale, *more = getattr(fused, op)(*tensors, **options, config=config)
    wanted_q, wanted_scale, *wanted = getattr(opmux, op).reference(*tensors, **options)
    what = f"{op} {block} {major} {config.block}"
    torch.testing.assert_close(scale, wanted_scale, rtol=1e-6, atol=0, msg=what)
    assert scale.stride() == wanted_scale.stride(), what
    assert all(torch.equal(a, b) for a, b in zip(more, wanted, strict=True)), what
    apart = (q.view(torch.uint8).int() - wanted_q.view(torch.uint8).int()).abs()
    assert apart.max() <= 1, what
    assert (apart > 0).float().mean() <= 1e-2, what


weight = 1 + 0.1 * torch.randn(300)
for place, block in enumerate(BLOCKS):
    major = "km"[place % 2]
    for config in (HELD, AHEAD, TWO_PASSES):
        for x in (torch.randn(5, 300), scattered(2, 2, 3, 300)):
            if config is not TWO_PASSES and block[0] != 1:
                continue
            check("rms_norm_quantize", (x, weight), block, major, config)
            check("add_rms_norm_quantize", (x, torch.randn_like(x), weight), block, major, config)
        for x in (torch.randn(5, 600), scattered(2, 2, 3, 600)):
            if config is TWO_PASSES or block[0] == 1:
                check("silu_and_mul_quantize", (x,), block, major, config)
sys.stdout.write("all equal\n")
