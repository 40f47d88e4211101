"""Reading and checking the index data of grouped products: where the rows of each group lie."""

from itertools import pairwise

from torch import Tensor

from opmux.errors import invalid


def read_groups(op: str, group_offsets: Tensor, group_sizes: Tensor | None, *, rows: int) -> list[slice]:
    """Read which rows belong to each group, and validate them.

    Args:
        op: The op that reads them, for the message.
        group_offsets: ``(groups + 1,)``: where each group starts, and where the last one ends.
        group_sizes: ``(groups,)``: how many rows from its start on a group has; None means all up to the next group.
        rows: How many rows there are.

    Raises:
        InvalidArgument: If the offsets do not start at 0, decrease or end past the rows, or a size is negative or
            reaches past the start of the next group.
    """
    offsets: list[int] = group_offsets.tolist()
    remedy = "it is the running sum of the groups' rows, padding included, with a 0 in front"
    if offsets[0] != 0:
        raise invalid(op, "group_offsets", "0 at index 0", str(offsets[0]), remedy)
    for group, (start, stop) in enumerate(pairwise(offsets)):
        if stop < start:
            expected = f"{start} or more at index {group + 1}, as at index {group}"
            raise invalid(op, "group_offsets", expected, str(stop), remedy)
    if offsets[-1] > rows:
        expected = f"at most {rows}, the number of rows, at its end"
        raise invalid(op, "group_offsets", expected, str(offsets[-1]), remedy)
    if group_sizes is None:
        return [slice(*ends) for ends in pairwise(offsets)]
    sizes: list[int] = group_sizes.tolist()
    for group, (size, (start, stop)) in enumerate(zip(sizes, pairwise(offsets), strict=True)):
        if not 0 <= size <= stop - start:
            expected = f"a number from 0 to {stop - start} at index {group}, the rows up to the next group"
            raise invalid(
                op, "group_sizes", expected, str(size), "give `group_offsets` room for the rows of each group"
            )
    return [slice(start, start + size) for size, start in zip(sizes, offsets, strict=False)]


def read_counts(op: str, masked_m: Tensor, *, capacity: int) -> list[int]:
    """Read how many rows of each group count, and validate them.

    Args:
        op: The op that reads them, for the message.
        masked_m: ``(groups,)``: how many of its first rows each group uses.
        capacity: ``max_m``, how many rows each group has room for.

    Raises:
        InvalidArgument: If a count is negative or above the capacity.
    """
    counts: list[int] = masked_m.tolist()
    for group, count in enumerate(counts):
        if not 0 <= count <= capacity:
            expected = f"a number from 0 to max_m = {capacity} at index {group}"
            raise invalid(op, "masked_m", expected, str(count), "give `x` room for the rows of each group")
    return counts


def count_rows(offsets: Tensor, sizes: Tensor | None, rows: int) -> int:
    """The number of rows that belong to a group; ``rows`` where the data cannot be read (fake tensors)."""
    given = offsets if sizes is None else sizes
    if type(given) is not Tensor or given.is_meta:
        return rows
    return int(offsets[-1]) if sizes is None else int(sizes.sum())
