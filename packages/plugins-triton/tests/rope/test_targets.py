"""Rotations of batches whose dims do not fold."""

from collections.abc import Callable

import pytest


@pytest.mark.long
def test_interpreted_rope_agrees_with_the_references(interpret: Callable[[str], None]) -> None:
    interpret("rope/interpreted_rope.py")
