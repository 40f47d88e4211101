"""Memory that an op writes: whether it overlaps itself, or an argument that the op reads or writes too.

The ranges of addresses answer most questions. Where they intersect, as those of q and k in one tensor do, the strides
decide, exactly: views that interleave are told from views that share an element.
"""

from typing import Any

import torch
from torch import Tensor

STEPS = 10_000
"""The pairs of subviews looked at before two views count as overlapping."""

_PLAIN = (Tensor, torch.nn.Parameter)
_Dims = tuple[tuple[int, int], ...]


def has_memory(tensor: Any) -> bool:
    """Whether a tensor has an address that says where its elements are."""
    return (
        tensor.__class__ in _PLAIN
        and not tensor.is_meta
        and tensor.layout is torch.strided
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and not torch._C._functorch.is_legacy_batchedtensor(tensor)
    )


def overlaps_itself(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether two elements may share a place: a stride is within the reach of the smaller ones."""
    if 0 in shape:
        return False
    reach = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1:
            if stride < reach:
                return True
            reach += (size - 1) * stride
    return False


def overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors share a byte."""
    if a.numel() == 0 or b.numel() == 0:
        return False
    return _meet(_byte_dims(a), _byte_dims(b), b.data_ptr() - a.data_ptr(), [STEPS])


def _byte_dims(tensor: Tensor) -> _Dims:
    """The (stride, size) of each dim in bytes, longest stride first; the bytes of an element are the last dim."""
    width = tensor.element_size()
    dims = [(stride * width, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True)]
    dims = sorted((dim for dim in dims if dim[0] and dim[1] > 1), reverse=True)
    return (*dims, (1, width)) if width > 1 else tuple(dims)


def _meet(a: _Dims, b: _Dims, distance: int, steps: list[int]) -> bool:
    """Whether a view at 0 and one at ``distance`` share a byte; True too where ``steps`` run out.

    The dim of the longest stride is taken apart: its places shift the rest of one view against the rest of the other,
    and few shifts leave their ranges intersecting.
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
