"""Where the rows of a tensor begin, and loads of tiles."""

from collections.abc import Callable


def test_interpreted_rows_are_the_tensors(interpret: Callable[[str], None]) -> None:
    interpret("interpreted_addressing.py")
