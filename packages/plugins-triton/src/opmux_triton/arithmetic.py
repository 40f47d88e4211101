"""Sizes rounded up for tiles. Loads no Triton."""


def next_power_of_two(n: int) -> int:
    """The smallest power of two that is at least ``n``; 1 for 0 and below."""
    return 1 << max(0, n - 1).bit_length()


def padded(size: int) -> int:
    """A dim padded for a product of tiles: the next power of two, at least 16 for the matrix units."""
    return max(16, next_power_of_two(size))
