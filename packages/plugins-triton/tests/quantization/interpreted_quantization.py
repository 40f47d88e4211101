"""Run by `quantization/test_targets` under TRITON_INTERPRET=1: what the conformance cases do not reach."""

import sys

import torch
from interpreted_results import scattered
from torch import Tensor

import opmux
from opmux_triton.quantization import targets
from opmux_triton.quantization.configs import QuantizeConfig

torch.manual_seed(0)
TILES = (
    QuantizeConfig(block=128, rows=2, parts=2, num_warps=4),
    QuantizeConfig(block=256, rows=1, parts=4, num_warps=4),
    QuantizeConfig(block=512, rows=4, parts=1, num_warps=4),
)
"""Narrower than a row, and wider."""


def check(x: Tensor, block: tuple[int, int], config: QuantizeConfig) -> None:
    """Every value is near its own, and scales are the reference's, in both layouts."""
    for major in ("k", "m"):
        options = {"dtype": torch.float8_e4m3fn, "block": block, "scale_major": major}
        q, scale = targets.quantize(x, **options, config=config)
        wanted, wanted_scale = opmux.quantize.reference(x, **options)
        what = f"{tuple(x.shape)} {block} {major} {config}"
        assert torch.equal(scale, wanted_scale), what
        assert scale.stride() == wanted_scale.stride(), what
        assert q.is_contiguous(), what
        apart = (q.view(torch.uint8).int() - wanted.view(torch.uint8).int()).abs()
        assert apart.max() <= 1, what
        assert (apart > 0).float().mean() <= 1e-2, what


for config in TILES:
    for block in ((1, 128), (1, 32), (1, -1), (-1, -1)):
        for x in (torch.randn(5, 300), torch.randn(3, 512), scattered(2, 3, 2, 260)):
            check(x, block, config)
SQUARE = QuantizeConfig(block=128, rows=128, parts=1, num_warps=8)
for x in (torch.randn(130, 300), scattered(2, 2, 3, 140)):
    check(x, (128, 128), SQUARE)

# More matrices than a grid has programs in its second dim, in three turns.
targets._MOST_MATRICES = 2
for x in (torch.randn(5, 3, 140), scattered(5, 2, 3, 140)[:, 1]):
    check(x, (-1, -1), TILES[0])
    check(x, (128, 128), SQUARE)

# The scale is so small that its reciprocal overflows.
tiny = torch.randn(2, 256) * 2.0**-130
for block in ((1, 128), (1, -1), (-1, -1)):
    check(tiny, block, TILES[0])
sys.stdout.write("all equal")
