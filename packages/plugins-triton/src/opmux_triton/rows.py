"""Tensors as rows: leading dims folded as far as the strides of all tensors allow."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor


class Rows(NamedTuple):
    """Rows of tensors ``(*tokens, n)``: row r begins at ``r // inner * outer[i] + r % inner * stride[i]`` of tensor i.

    Attributes:
        total: how many rows.
        inner: rows for each step of the outer strides; None if one stride serves all rows.
        stride: of each tensor, in elements.
        outer: of each tensor, in elements; None where inner is.
    """

    total: int
    inner: int | None
    stride: tuple[int, ...]
    outer: tuple[int | None, ...]


def folded(tensors: Sequence[Tensor], last: int = 1) -> list[tuple[int, tuple[int, ...]]]:
    """The dims before the ``last`` ones as (size, stride in each tensor).

    Dims of size 1 are left out, and those that follow one another in every tensor are joined.
    """
    joined: list[tuple[int, tuple[int, ...]]] = []
    end = tensors[0].dim() - last
    strides = list(zip(*(t.stride()[:end] for t in tensors), strict=True))
    for size, step in zip(tensors[0].shape[:end], strides, strict=True):
        if size == 1:
            continue
        if joined and joined[-1][1] == tuple(size * s for s in step):
            joined[-1] = (joined[-1][0] * size, step)
        else:
            joined.append((size, step))
    return joined


def parts(tensors: Sequence[Tensor], others: Sequence[Tensor] = ()) -> Iterator[tuple[Rows, Sequence[Tensor]]]:
    """The tensors in as few parts as their strides allow, each with its rows; usually one.

    Args:
        tensors: ``(*tokens, n)`` each, in any strides.
        others: contiguous tensors of the same leading dims: their rows follow one another.

    Yields:
        The rows of a part, and its tensors and others in one list.
    """
    dims = folded(tensors)
    if len(dims) > 2:
        for entry in range(tensors[0].shape[0]):
            yield from parts([t[entry] for t in tensors], [t[entry] for t in others])
        return
    every = [*tensors, *others]
    nothing = (None,) * len(tensors)
    if not dims:
        yield Rows(1, None, (0,) * len(tensors), nothing), every
    elif len(dims) == 1:
        yield Rows(dims[0][0], None, dims[0][1], nothing), every
    else:
        (outer, outer_strides), (inner, strides) = dims
        yield Rows(outer * inner, inner, strides, outer_strides), every
