"""Quantisation whose tiles end inside a row, in every block and layout of the scales."""

from collections.abc import Callable

import pytest
from quantization.known_scale_calls import CODES, SHAPES, check


def test_interpreted_quantisation_agrees_with_the_references(interpret: Callable[[str], None]) -> None:
    interpret("quantization/interpreted_quantization.py")


def test_interpreted_fused_quantisation_agrees_with_the_references(interpret: Callable[[str], None]) -> None:
    interpret("quantization/interpreted_fused.py")


def test_interpreted_ops_with_known_scales_agree_with_the_references(interpret: Callable[[str], None]) -> None:
    interpret("quantization/interpreted_known_scales.py")


@pytest.mark.gpu
@pytest.mark.memcheck
@pytest.mark.parametrize(("shape", "blocks"), [*SHAPES, ((300, 8192), (300, 64)), ((64, 7168), (64, 1))], ids=str)
def test_ops_with_known_scales_on_the_gpu(shape: tuple[int, ...], blocks: tuple[int, ...]) -> None:
    for codes in CODES:
        check(shape, blocks, codes, "cuda")
