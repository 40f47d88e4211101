"""Gated activations whose tiles end inside a row."""

from collections.abc import Callable


def test_interpreted_gates_agree_with_the_references(interpret: Callable[[str], None]) -> None:
    interpret("activation/interpreted_gates.py")
