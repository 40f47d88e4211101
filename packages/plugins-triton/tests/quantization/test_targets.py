"""Quantisation whose tiles end inside a row, in every block and layout of the scales."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from quantization import scale_calls
from quantization.known_scale_calls import CODES, SHAPES, check

from opmux_triton.quantization import fused_targets
from opmux_triton.quantization.configs import FusedConfig


@pytest.mark.long
def test_interpreted_quantisation_agrees_with_the_references(interpret: Callable[[str], None]) -> None:
    interpret("quantization/interpreted_quantization.py")


@pytest.mark.long
def test_interpreted_fused_quantisation_agrees_with_the_references(interpret: Callable[[str], None]) -> None:
    interpret("quantization/interpreted_fused.py")


@pytest.mark.long
def test_interpreted_ops_with_known_scales_agree_with_the_references(interpret: Callable[[str], None]) -> None:
    interpret("quantization/interpreted_known_scales.py")


@pytest.mark.long
def test_interpreted_conversions_of_scales_agree_with_the_reference(interpret: Callable[[str], None]) -> None:
    interpret("quantization/interpreted_scales.py")


@pytest.mark.gpu
@pytest.mark.memcheck
@pytest.mark.parametrize("shape", [*scale_calls.SHAPES, (4096, 56)], ids=str)
def test_conversions_of_scales_on_the_gpu(shape: tuple[int, ...]) -> None:
    scale_calls.check(shape, "cuda")
    scale_calls.check_unpacking(shape, "cuda")


@pytest.mark.parametrize("op", ["rms_norm_quantize", "silu_and_mul_quantize"])
def test_a_tile_that_holds_no_row_is_refused(op: str) -> None:
    config = FusedConfig(block=128, rows=1, num_warps=4)
    options: dict[str, Any] = {"dtype": torch.float8_e4m3fn, "block": (1, -1), "scale_major": "k", "config": config}
    tensors = [torch.randn(2, 600)]
    if op == "rms_norm_quantize":
        tensors.append(torch.ones(600))
        options |= {"eps": 1e-6, "weight_offset": 0.0}
    with pytest.raises(ValueError, match=r"^block expected at least \d00, a row, got 128$"):
        getattr(fused_targets, op)(*tensors, **options)


@pytest.mark.gpu
@pytest.mark.memcheck
@pytest.mark.parametrize(("shape", "blocks"), [*SHAPES, ((300, 8192), (300, 64)), ((64, 7168), (64, 1))], ids=str)
def test_ops_with_known_scales_on_the_gpu(shape: tuple[int, ...], blocks: tuple[int, ...]) -> None:
    for codes in CODES:
        check(shape, blocks, codes, "cuda")
