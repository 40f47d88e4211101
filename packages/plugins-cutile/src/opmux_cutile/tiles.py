"""Sizes of tiles, which are powers of two, and of rows."""


def power_of_two(number: int) -> int:
    """The least one that is not below a number."""
    return 1 << max(number - 1, 0).bit_length()


def whole_vectors(width: int) -> bool:
    """Whether rows of this width get a kernel of their own; other widths share one that reads element by element."""
    return width % 64 == 0 or (width >= 1024 and width % 8 == 0)
