"""Paged attention with its keys cut among programs."""

from collections.abc import Callable


def test_splits_are_joined_from_what_was_written_alone(interpret: Callable[[str], None]) -> None:
    interpret("interpreted_splits.py")
