"""Calls of ops whose scales are known, checked against the reference: the interpreter and the GPU run the same ones."""

import torch
from interpreted_results import scattered

import opmux

CODES = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.int8)
SHAPES = (
    ((3, 40, 200), (3, 40, 2)),
    ((3, 40, 200), (3, 1, 1)),
    ((130, 200), (2, 2)),
    ((130, 200), (130, 1)),
    ((2, 3, 5, 70), (2, 3, 5, 3)),
    ((0, 8), (0, 1)),
    ((1, 256), (1, 1)),
)
"""Of a matrix and of its scales: every block, sizes that no block divides, and batches."""


def check(shape: tuple[int, ...], blocks: tuple[int, ...], codes: torch.dtype, device: str, whole: bool = True) -> None:
    """Every op on a matrix, dense or with leading dims that do not fold: codes may differ where a reciprocal rounds."""
    torch.manual_seed(len(shape) + shape[-1])
    x = torch.randn(shape).to(torch.bfloat16) if whole else scattered(*shape, dtype=torch.bfloat16)
    if device != "cpu":
        x = x.to(device)
    scale = torch.rand(blocks).add(0.01).to(device)
    ways = ("triton", "reference")
    q, wanted = (opmux.static_quantize(x, scale, dtype=codes, backend=way) for way in ways)
    assert int((q.float() != wanted.float()).sum()) <= max(1, q.numel() // 1000)
    for dtype in (torch.bfloat16, torch.float32):
        found, expected = (opmux.dequantize(wanted, scale, out_dtype=dtype, backend=way) for way in ways)
        assert torch.equal(found, expected)
    for to in CODES[:-1] if codes != torch.int8 else ():
        found, expected = (opmux.convert_fp8(wanted, scale, dtype=to, backend=way) for way in ways)
        assert torch.equal(found[0].view(torch.uint8), expected[0].view(torch.uint8))
        assert torch.equal(found[1], expected[1])
        assert found[1].is_contiguous()
