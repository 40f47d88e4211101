"""Sizes as tiles need them. Loads no Triton."""


def next_power_of_two(n: int) -> int:
    """The smallest power of two that is at least ``n``; 1 for 0 and below."""
    return 1 << max(0, n - 1).bit_length()


def padded(size: int) -> int:
    """A dim as a product of tiles takes it: the next power of two, 16 or more for the matrix units."""
    return max(16, next_power_of_two(size))
