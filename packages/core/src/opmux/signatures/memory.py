"""Whether memory that an op writes overlaps itself, or an argument that the op also reads or writes.

Address ranges answer most questions. Where they intersect, as those of q and k in one tensor do, the strides decide
exactly: they tell views that interleave from views that share an element.
"""

import functools
from typing import Any

import torch
from torch import Tensor

STEPS = 10_000
"""How many pairs of subviews are compared before two views, or one with itself, count as overlapping."""

_PLAIN = (Tensor, torch.nn.Parameter)
_Form = tuple[tuple[int, ...], tuple[int, ...], int]
"""Shape, strides, bytes of an element."""

_Dims = tuple[tuple[int, int], ...]


def has_memory(tensor: Any) -> bool:
    """Whether the tensor is a plain one whose address and strides say where its elements are."""
    return (
        tensor.__class__ in _PLAIN
        and not tensor.is_meta
        and tensor.layout is torch.strided
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and not torch._C._functorch.is_legacy_batchedtensor(tensor)
    )


def separate(written: tuple[Any, ...], read: tuple[Any, ...]) -> bool:
    """Whether the written tensors overlap neither themselves, each other, nor the read ones; checked at every call.

    Every tensor satisfies `has_memory`; None stands for an absent one.
    """
    spans: list[tuple[Tensor, int, int]] = []
    last = 0
    for tensor in written:
        begin = tensor.data_ptr()
        if tensor.is_contiguous():
            end = begin + tensor.nbytes
        else:
            reach, tangled = _form(tensor.shape, tensor.stride())
            if tangled:
                return False
            end = begin + reach * tensor.element_size()
        for other, start, stop in spans:
            if begin < stop and start < end and overlap(tensor, other):
                return False
        spans.append((tensor, begin, end))
        last = max(last, end)
    for tensor in read:
        if tensor is None:
            continue
        begin = tensor.data_ptr()
        if begin >= last:  # strides are not negative: all of it lies behind what is written
            continue
        if tensor.is_contiguous():
            end = begin + tensor.nbytes
        else:
            end = begin + _form(tensor.shape, tensor.stride())[0] * tensor.element_size()
        for other, start, stop in spans:
            if begin < stop and start < end and overlap(tensor, other):
                return False
    return True


def overlaps_itself(tensor: Tensor) -> bool:
    """Whether two elements share an address; True too where deciding takes more than `STEPS`."""
    return _form(tensor.shape, tensor.stride())[1]


@functools.lru_cache(maxsize=1024)
def _form(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, bool]:
    """The number of elements from the first to the last, and whether two share an address."""
    if 0 in shape:
        return 0, False
    dims = sorted((dim for dim in zip(strides, shape, strict=True) if dim[1] > 1), reverse=True)
    reach = 1 + sum(stride * (size - 1) for stride, size in dims)
    return reach, _tangled(tuple(dims), [STEPS])


def _tangled(dims: _Dims, steps: list[int]) -> bool:
    """Whether two elements of a view share an address; True too where ``steps`` run out.

    Two such elements differ in position along some dims. Take the one of these with the longest stride: the subview of
    the dims below it meets itself at a distance of some positions of that dim. No stride smaller than the span of the
    dims below it, as in every dense layout, means that there is nothing to compare.
    """
    if dims and dims[-1][0] == 0:
        return True
    for place, (stride, size) in enumerate(dims):
        below = dims[place + 1 :]
        near = min(size - 1, sum(s * (n - 1) for s, n in below) // stride)
        if any(_meet(below, below, shift * stride, steps) for shift in range(1, near + 1)):
            return True
    return False


def overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors share a byte."""
    if a.numel() == 0 or b.numel() == 0:
        return False
    form_a, form_b = ((t.shape, t.stride(), t.element_size()) for t in (a, b))
    return _forms_overlap(form_a, form_b, b.data_ptr() - a.data_ptr())


@functools.lru_cache(maxsize=1024)
def _forms_overlap(a: _Form, b: _Form, distance: int) -> bool:
    """Whether a tensor of form ``b`` overlaps one of form ``a`` that begins ``distance`` bytes before it."""
    return _meet(_byte_dims(*a), _byte_dims(*b), distance, [STEPS])


def _byte_dims(shape: tuple[int, ...], strides: tuple[int, ...], width: int) -> _Dims:
    """The (stride, size) of each dim in bytes, longest stride first; the bytes of an element are the last dim."""
    dims = [(stride * width, size) for stride, size in zip(strides, shape, strict=True)]
    dims = sorted((dim for dim in dims if dim[0] and dim[1] > 1), reverse=True)
    return (*dims, (1, width)) if width > 1 else tuple(dims)


def _meet(a: _Dims, b: _Dims, distance: int, steps: list[int]) -> bool:
    """Whether a view at 0 and one at ``distance`` share a byte; True too where ``steps`` run out.

    The dim with the largest stride is split off: each of its positions shifts the rest of one view against the rest of
    the other, and only few shifts leave their ranges intersecting.
    """
    steps[0] -= 1
    if steps[0] < 0:
        return True
    reach_a, reach_b = (sum((size - 1) * stride for stride, size in dims) for dims in (a, b))
    if distance > reach_a or distance + reach_b < 0:
        return False
    if not a and not b:
        return True  # two bytes, neither before the other
    stride = max(dims[0][0] for dims in (a, b) if dims)
    forward = backward = 0
    if b and b[0][0] == stride:
        forward, reach_b, b = b[0][1] - 1, reach_b - (b[0][1] - 1) * stride, b[1:]
    if a and a[0][0] == stride:
        backward, reach_a, a = a[0][1] - 1, reach_a - (a[0][1] - 1) * stride, a[1:]
    least = max(-backward, -((distance + reach_b) // stride))
    most = min(forward, (reach_a - distance) // stride)
    return any(_meet(a, b, distance + shift * stride, steps) for shift in range(least, most + 1))
