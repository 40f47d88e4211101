"""Sizes of tiles, which are powers of two."""


def power_of_two(number: int) -> int:
    """The least one that is not below a number."""
    return 1 << max(number - 1, 0).bit_length()
