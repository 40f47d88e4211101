"""Ops that quantise what they compute: the same as their parts in float32, one after the other."""

import pytest
import torch
from torch.nn import functional as F

import opmux
from opmux.errors import InvalidArgument

BLOCKS = ((1, 128), (1, -1), (-1, -1), (128, 128), (1, 32))
HALVES = (torch.bfloat16, torch.float16)
FP8 = torch.float8_e4m3fn


def held_to_parts(results, y, block, scale_major="k", dtype=FP8):
    """Scales and codes are those of the unrounded y, up to the rounding of another order of its sums."""
    q, scale = results[:2]
    wanted_q, wanted_scale = opmux.quantize.reference(y, dtype=dtype, block=block, scale_major=scale_major)
    torch.testing.assert_close(scale, wanted_scale, rtol=1e-6, atol=0)
    assert scale.stride() == wanted_scale.stride()
    assert q.dtype == dtype
    assert (q.float() != wanted_q.float()).float().mean() < 1e-3


@pytest.mark.parametrize("block", BLOCKS, ids=str)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_rms_norm_quantize(dtype, block):
    x, weight = torch.randn(2, 130, 160).to(dtype), (1 + 0.1 * torch.randn(160)).to(dtype)
    results = opmux.rms_norm_quantize.reference(x, weight, dtype=FP8, block=block, eps=1e-5, weight_offset=0.5)
    held_to_parts(results, F.rms_norm(x.float(), (160,), weight.float() + 0.5, 1e-5), block)


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_add_rms_norm_quantize(block):
    x, residual, weight = torch.randn(130, 160).bfloat16(), torch.randn(130, 160), torch.randn(160)
    options = {"dtype": torch.int8, "block": block, "scale_major": "m"}
    results = opmux.add_rms_norm_quantize.reference(x, residual.bfloat16(), weight, **options)
    total = (x.float() + residual.bfloat16().float()).bfloat16()
    assert torch.equal(results[2], total)
    held_to_parts(results, F.rms_norm(total.float(), (160,), weight, 1e-6), block, "m", torch.int8)


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_silu_and_mul_quantize(block):
    x = (3 * torch.randn(2, 130, 320)).bfloat16()
    gate, up = x.float().chunk(2, -1)
    held_to_parts(opmux.silu_and_mul_quantize.reference(x, dtype=FP8, block=block), F.silu(gate) * up, block)


def test_the_value_is_quantised_before_it_is_rounded():
    """In bfloat16 the results of the two differ: 3 significant digits before 4 bits of mantissa."""
    x, weight = torch.randn(64, 512).bfloat16(), torch.randn(512).bfloat16()
    q, scale = opmux.rms_norm_quantize.reference(x, weight, dtype=FP8)
    _, rounded_scale = opmux.quantize.reference(opmux.rms_norm.reference(x, weight), dtype=FP8)
    assert not torch.equal(scale, rounded_scale)
    exact = F.rms_norm(x.double(), (512,), weight.double(), 1e-6)
    unrounded = q.double() * scale.double().repeat_interleave(128, 1)
    assert (unrounded - exact).abs().max() <= exact.abs().max() / 16


@pytest.mark.parametrize("op", ["rms_norm_quantize", "add_rms_norm_quantize", "silu_and_mul_quantize"])
def test_a_block_that_there_is_not(op):
    x, weight = torch.randn(4, 64), torch.ones(64)
    tensors = {"rms_norm_quantize": (x, weight), "add_rms_norm_quantize": (x, x, weight)}.get(op, (x,))
    with pytest.raises(InvalidArgument) as raised:
        getattr(opmux, op)(*tensors, dtype=FP8, block=(1, 64))
    assert str(raised.value).splitlines()[0] == (
        f"{op}: `block` expected block in ((1, 128), (1, -1), (-1, -1), (128, 128), (1, 32)), got block = (1, 64); "
        "the blocks are (1, 128), (1, -1) row, (-1, -1) tensor, (128, 128) and (1, 32)"
    )
