"""Quantisation whose tiles end inside a row, in every block and layout of the scales."""

from collections.abc import Callable


def test_interpreted_quantisation_agrees_with_the_references(interpret: Callable[[str], None]) -> None:
    interpret("quantization/interpreted_quantization.py")


def test_interpreted_fused_quantisation_agrees_with_the_references(interpret: Callable[[str], None]) -> None:
    interpret("quantization/interpreted_fused.py")
