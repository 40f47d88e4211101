"""Quantisation whose tiles end inside a row, in every block and layout of the scales."""

from collections.abc import Callable

import pytest
from quantization import scale_calls
from quantization.known_scale_calls import CODES, SHAPES, check


def test_interpreted_quantisation_agrees_with_the_references(interpret: Callable[[str], None]) -> None:
    interpret("quantization/interpreted_quantization.py")


def test_interpreted_fused_quantisation_agrees_with_the_references(interpret: Callable[[str], None]) -> None:
    interpret("quantization/interpreted_fused.py")


def test_interpreted_ops_with_known_scales_agree_with_the_references(interpret: Callable[[str], None]) -> None:
    interpret("quantization/interpreted_known_scales.py")


def test_interpreted_conversions_of_scales_agree_with_the_reference(interpret: Callable[[str], None]) -> None:
    interpret("quantization/interpreted_scales.py")


@pytest.mark.gpu
@pytest.mark.memcheck
@pytest.mark.parametrize("shape", [*scale_calls.SHAPES, (4096, 56)], ids=str)
def test_conversions_of_scales_on_the_gpu(shape: tuple[int, ...]) -> None:
    scale_calls.check(shape, "cuda")


@pytest.mark.gpu
@pytest.mark.memcheck
@pytest.mark.parametrize(("shape", "blocks"), [*SHAPES, ((300, 8192), (300, 64)), ((64, 7168), (64, 1))], ids=str)
def test_ops_with_known_scales_on_the_gpu(shape: tuple[int, ...], blocks: tuple[int, ...]) -> None:
    for codes in CODES:
        check(shape, blocks, codes, "cuda")
