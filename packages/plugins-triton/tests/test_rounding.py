"""Rounding to a tensor's dtype, by hand under the interpreter."""

from collections.abc import Callable


def test_interpreted_rounding_is_torchs(interpret: Callable[[str], None]) -> None:
    interpret("interpreted_rounding.py")
