"""The steps of a size in the plan key of an op with measured rows: calls within a step share a plan."""

import math
from collections.abc import Iterable

PER_OCTAVE = 8
"""Steps between two powers of two. Up to 16 every size is a step; from 1024 to 2048 a step is 128, the rows of a tile,
so that waves show; dynamic batches up to 16384 make about a hundred plans."""

_KEPT = 1 << 16


class Steps(dict[int | tuple[int, ...], int]):
    """Size -> the size that its step is planned for: a measured size itself, else the end of the step.

    A star dim may be given by the whole shape of a tensor that it leads: the product of its sizes counts. A dict, since
    a lookup of a size that occurred before is all that a call pays. Sizes are kept up to a bound.
    """

    def __init__(self, measured: Iterable[int], trailing: int = 0) -> None:
        """Make the steps.

        Args:
            measured: the sizes that were measured; each is a step of its own.
            trailing: how many dims of a shape follow the star dim.
        """
        super().__init__()
        self._measured, self._trailing = frozenset(measured), trailing

    def __missing__(self, given: int | tuple[int, ...]) -> int:
        if len(self) >= _KEPT:
            self.clear()
        size = given if isinstance(given, int) else math.prod(given[: len(given) - self._trailing])
        self[given] = made = size if size in self._measured else end_of_step(size)
        return made


def end_of_step(size: int) -> int:
    """The largest size of the step that a size belongs to: 288 for 257 to 288."""
    last = size - 1
    shift = max(last.bit_length() - PER_OCTAVE.bit_length(), 0)
    return ((last >> shift) + 1) << shift
