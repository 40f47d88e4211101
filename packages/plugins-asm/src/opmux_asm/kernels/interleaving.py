"""Instructions of other units between matrix instructions, evenly: a wave issues them while the matrix unit works."""

from collections.abc import Callable, Sequence

Step = Callable[[], None]


def interleave(matrix: Sequence[Step], others: Sequence[Step], first: int = 0) -> None:
    """Write matrix instructions in order, the others spread over the gaps between them, both in their order.

    Args:
        matrix: writes one matrix instruction each.
        others: writes one other instruction each, or a few.
        first: matrix instructions before the first of the others.
    """
    gaps = max(len(matrix) - first, 1)
    done = 0
    for i, step in enumerate(matrix):
        step()
        due = len(others) * max(i + 1 - first, 0) // gaps
        for other in others[done:due]:
            other()
        done = max(done, due)
    for other in others[done:]:
        other()
