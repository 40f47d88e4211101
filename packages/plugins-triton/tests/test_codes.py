"""Codes of 8-bit formats, converted by integer arithmetic under the interpreter."""

from collections.abc import Callable


def test_interpreted_codes_are_torchs(interpret: Callable[[str], None]) -> None:
    interpret("interpreted_codes.py")
