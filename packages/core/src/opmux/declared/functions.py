"""Functions that the source of a feature may call, and the names that generated code has for them.

`opmux.callpath.names` binds these with all other names of generated code.
"""

from dataclasses import dataclass
from typing import Any

from opmux.declared.layout import aligned, has_blocks, span


@dataclass(frozen=True)
class Name:
    """A global of generated code; as text it is the name itself.

    Attributes:
        text: the name itself.
        meaning: what it stands for, in one line.
        value: what it is bound to; None for the names whose value is given to `opmux.callpath.names.bind`.
    """

    text: str
    meaning: str
    value: Any = None

    def __str__(self) -> str:
        return self.text


def product(sizes: tuple[int, ...]) -> int:
    """The product of a star dim's sizes."""
    if len(sizes) == 1:
        return sizes[0]
    total = 1
    for size in sizes:
        total *= size
    return total


def stride_order(strides: tuple[int, ...]) -> tuple[int, ...]:
    """Positions of the dims by decreasing stride."""
    return tuple(sorted(range(len(strides)), key=lambda position: -strides[position]))


PRODUCT = Name("_prod", "the product of a star dim's sizes", product)
STRIDE_ORDER = Name("_stride_order", "the positions of the dims by decreasing stride", stride_order)
ALIGNED = Name("_aligned", "whether address and strides are multiples of some bytes", aligned)
SPAN = Name("_span", "elements from a tensor's first to its last", span)
HAS_BLOCKS = Name("_has_blocks", "whether a scale has one value per block", has_blocks)

FUNCTIONS = (PRODUCT, STRIDE_ORDER, ALIGNED, SPAN, HAS_BLOCKS)


def last_name(dim: str) -> str:
    """The local variable with the last index of a dim, in the source of a `Bucket`."""
    return f"_last_of_{dim}"


def shift_name(dim: str) -> str:
    """The local variable with the exponent of a dim's steps, in the source of a `Bucket`."""
    return f"_shift_of_{dim}"
