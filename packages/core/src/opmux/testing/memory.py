"""Tensors in guarded memory: laid out in a given way inside a larger buffer, the rest of which must not change.

The rest of the buffer holds poison: NaN, or an index far out of range. A kernel that reads past a tensor carries the
poison into its result; one that writes past it changes the guard.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from opmux.testing.case import PLAIN

GUARD_BYTES = 4096
"""Elements before and after a tensor: whole vectors of any width, so that alignment is as in a fresh tensor."""

POISON_INDEX = -12345
"""The value in unused places of index tensors."""

VIEWS = (PLAIN, "gapped", "permuted", "strided", "offset", "expanded")
"""How tensors lie in memory:

plain     contiguous and aligned
gapped    rows of a larger tensor, as a slice of its columns: unit stride in the last dim only
permuted  contiguous with the dims in reverse order: no unit stride in the last dim
strided   every other element of the last dim
offset    contiguous, but one element past an aligned address
expanded  a single entry repeated along the first dim, stride 0 (only where nothing is written)
"""

_empty = torch.empty  # kept because opmux.testing.poison replaces the name while a target runs

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: Tensor) -> Tensor:
    """The tensor's bit patterns as integers, so that NaNs compare."""
    return tensor if tensor.dtype == torch.bool else tensor.view(_INTEGERS[tensor.element_size()])


def poison_(tensor: Tensor) -> Tensor:
    """Fill with NaN, or with an index far out of range (the largest value if that does not fit)."""
    if tensor.dtype.is_floating_point:
        return tensor.fill_(float("nan"))
    if tensor.dtype in (torch.int16, torch.int32, torch.int64):
        return tensor.fill_(POISON_INDEX)
    return tensor.fill_(127 if tensor.dtype != torch.bool else True)


@dataclass
class Guarded:
    """A tensor inside a larger buffer.

    Attributes:
        tensor: the view that is passed to the call.
        buffer: all of the memory, as one row of elements.
    """

    tensor: Tensor
    buffer: Tensor
    before: Tensor | None = None

    def remember(self) -> None:
        """Save the buffer's current contents for later comparison."""
        self.before = bits(self.buffer).clone()

    def changed_outside(self) -> int:
        """How many elements of the buffer outside the tensor have changed."""
        assert self.before is not None
        changed = bits(self.buffer) != self.before
        inside = torch.as_strided(changed, self.tensor.shape, self.tensor.stride(), self.tensor.storage_offset())
        if inside.numel():
            inside.fill_(False)
        return int(changed.sum())

    def changed_inside(self) -> Tensor:
        """Where the tensor itself has changed."""
        assert self.before is not None
        changed = bits(self.buffer) != self.before
        return torch.as_strided(changed, self.tensor.shape, self.tensor.stride(), self.tensor.storage_offset())


def guarded(values: Tensor, view: str = PLAIN) -> Guarded:
    """Copy values into guarded memory, laid out as the named view."""
    made = guarded_empty(tuple(values.shape), values.dtype, values.device, view)
    if view == "expanded" and values.dim() > 1 and values.shape[0] > 1:
        made.tensor[:1].copy_(values[:1])
    elif values.numel():
        made.tensor.copy_(values)
    return made


def guarded_empty(
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    view: str = PLAIN,
    strides: Sequence[int] | None = None,
) -> Guarded:
    """Poisoned guarded memory, laid out as the named view or with the given strides."""
    shape = tuple(shape)
    step = GUARD_BYTES // dtype.itemsize
    if strides is None:
        strides = view_strides(shape, view)
    first = step + (1 if view == "offset" else 0)
    span = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if all(shape) else 0
    buffer = poison_(_empty(first + span + step, dtype=dtype, device=device))
    return Guarded(torch.as_strided(buffer, shape, tuple(strides), first), buffer)


def view_strides(shape: tuple[int, ...], view: str) -> tuple[int, ...]:
    """The strides of a shape in a view."""
    if view == "permuted":
        return tuple(reversed(_contiguous(tuple(reversed(shape)))))
    if view == "strided" and shape:
        return tuple(2 * s for s in _contiguous(shape))
    if view == "gapped" and shape:
        # Each row is followed by 16 elements of other columns: rows stay aligned, but are not dense.
        return _contiguous((*shape[:-1], -(-shape[-1] // 16) * 16 + 16))
    strides = _contiguous(shape)
    if view == "expanded" and len(shape) > 1:
        return (0, *strides[1:])
    return strides


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
