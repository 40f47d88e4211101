"""What stands between Triton's interpreter and memory."""

from collections.abc import Callable


def test_accesses_outside_of_a_kernels_tensors_are_refused(interpret: Callable[[str], None]) -> None:
    interpret("interpreted_outside.py")
