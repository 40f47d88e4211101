"""Adds to a result of DeepGEMM's: begins it with what is added, once the op beneath takes the call."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

import opmux
from opmux.plugin import UnsupportedCall, device_arch, takers

ALIGNED = 16
"""Bytes to which a tensor may have to be aligned."""
MOST_TAKEN = 1024
"""Bounds the table of forms of calls that are known to be taken."""

Part = tuple[slice, tuple[Tensor, ...]]
"""The matrices of a result that a call adds to, and the call's other tensors."""

_taken: set[Any] = set()


def add(op: Callable[..., Any], total: Tensor, c: Tensor | None, *given: Tensor, backend: str) -> None:
    """Let ``total`` be what an op adds to c, or to 0 where it is None. A call that is refused leaves it as it was.

    Args:
        op: an op that adds to its first argument.
        total: that argument.
        c: in its shape and dtype; may be in its memory.
        *given: the op's other tensors.
        backend: whose implementation is to run.
    """
    add_parts(op, total, c, [(slice(None), given)], backend)


def add_parts(op: Callable[..., Any], total: Tensor, c: Tensor | None, parts: Sequence[Part], backend: str) -> None:
    """The same by a call for each part of ``total``, which may be none."""
    for part, given in parts:
        ask(op, out := total[part], *given, backend=backend, written=out)
    checked = opmux.policy.current().check  # index data is then refused too, when the op runs
    sums = total.clone() if checked else total
    begin(sums, c)
    for part, given in parts:
        op(sums[part], *given, backend=backend)
    if checked:
        total.copy_(sums)


def ask(op: Callable[..., Any], *tensors: Tensor, backend: str, written: Tensor | None = None) -> None:
    """Raise what the op raises if it does not take the call; nothing runs.

    Forms that were taken are not asked for again: of a backend that is named neither policy nor quarantine refuses one.

    Args:
        op: the op.
        *tensors: its tensors, in order.
        backend: whose implementation is to run.
        written: the one of them that is written to, which must lie apart from the others.
    """
    form = op, backend, *((t.dtype, t.device, t.shape, t.stride(), t.data_ptr() % ALIGNED) for t in tensors)
    apart = written is None or not any(t is not written and _meet(t, written) for t in tensors)
    if apart and form in _taken:
        return
    first = tensors[0]
    if not takers(op, *tensors, arch=device_arch(first.device.type, first.get_device()), backend=backend):
        op(*tensors, backend=backend)  # says why it is refused
        raise UnsupportedCall(f"{op.__name__}: the call is not taken")  # pragma: no cover - the line above raises
    if len(_taken) >= MOST_TAKEN:
        _taken.clear()
    _taken.add(form)


def begin(total: Tensor, c: Tensor | None) -> None:
    """Put what is added to where the product is added."""
    if c is None:
        total.zero_()
    elif not _same_view(c, total):
        total.copy_(readable(c, total))


def readable(tensor: Tensor, written: Tensor) -> Tensor:
    """A tensor that can be read while another one is written; copied where both share memory.

    One with each element in the same place is not copied: an element may be read before it is written.
    """
    return tensor.clone() if _meet(tensor, written) and not _same_view(tensor, written) else tensor


def _same_view(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have each element in the same place."""
    return (a.data_ptr(), a.dtype, a.shape, a.stride()) == (b.data_ptr(), b.dtype, b.shape, b.stride())


def _meet(a: Tensor, b: Tensor) -> bool:
    """Whether the addresses from the first to the last element of two tensors intersect."""
    (begin_a, end_a), (begin_b, end_b) = _span(a), _span(b)
    return begin_a < end_b and begin_b < end_a


def _span(tensor: Tensor) -> tuple[int, int]:
    begin = tensor.data_ptr()
    if not tensor.numel():
        return begin, begin
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + (last + 1) * tensor.element_size()
