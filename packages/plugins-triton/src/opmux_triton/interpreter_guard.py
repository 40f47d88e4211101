"""Checks every read and write of a kernel under Triton's interpreter against the memory of the launch's tensors.

A view's memory is that of its whole storage. This is what compute-sanitizer's memcheck does on a GPU. A wrong mask
usually goes unnoticed: the kernel reads past a tensor and does not use the values. Masked-off addresses may be
anything, as on a device. The interpreter accesses memory through four functions of Triton's extension; importing this
module puts a check before each.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from triton.runtime import interpreter
from triton.runtime.errors import InterpreterError


class OutsideOfTensors(IndexError):
    """A kernel reads or writes outside the memory of its tensors."""


class Span(NamedTuple):
    """The memory of a tensor's storage: its first address, and the one after its last."""

    start: int
    end: int
    name: str


class Guard:
    """The interpreter's access to memory, checked while a launch is `held`."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self._kernel = ""
        self._spans: list[Span] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def load(self, addresses: Any, mask: Any, other: Any, dtype: Any) -> Any:
        """A masked load."""
        self._check("reads", addresses, mask, np.dtype(dtype).itemsize)
        return self._native.load(addresses, mask, other, dtype)

    def store(self, addresses: Any, values: Any, mask: Any) -> Any:
        """A masked store."""
        self._check("writes", addresses, mask, values.itemsize)
        return self._native.store(addresses, values, mask)

    def atomic_rmw(self, operation: Any, addresses: Any, values: Any, mask: Any, order: Any) -> Any:
        """A masked atomic read-modify-write."""
        self._check("changes", addresses, mask, values.itemsize)
        return self._native.atomic_rmw(operation, addresses, values, mask, order)

    def atomic_cas(self, addresses: Any, expected: Any, values: Any, order: Any) -> Any:
        """An atomic compare-and-swap."""
        self._check("changes", addresses, np.ones(np.shape(addresses), bool), values.itemsize)
        return self._native.atomic_cas(addresses, expected, values, order)

    @contextlib.contextmanager
    def held(self, kernel: str, spans: Sequence[Span]) -> Iterator[None]:
        """While a launch runs, whose tensors have this memory."""
        before = self._kernel, self._spans
        self._kernel, self._spans = kernel, list(spans)
        try:
            yield
        except InterpreterError as error:
            # The interpreter wraps it once for each function of the kernel that it passes through.
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, OutsideOfTensors):
                cause = cause.__cause__
            if cause is None:
                raise
            raise cause from None
        finally:
            self._kernel, self._spans = before

    def _check(self, does: str, addresses: Any, mask: Any, size: int) -> None:
        if self._spans is None:  # a kernel that was not launched by this package
            return
        addresses, mask = np.broadcast_arrays(addresses, mask)
        used = addresses[mask.astype(bool)].astype(np.int64)
        if not used.size:
            return
        low, high = int(used.min()), int(used.max()) + size
        if any(s.start <= low and high <= s.end for s in self._spans):
            return
        inside = np.zeros(used.shape, bool)
        for span in self._spans:
            inside |= (used >= span.start) & (used + size <= span.end)
        if not inside.all():
            raise OutsideOfTensors(self._said(does, int(used[~inside][0]), int((~inside).sum()), size))

    def _said(self, does: str, address: int, count: int, size: int) -> str:
        def away(span: Span) -> int:
            return max(span.start - address, address + size - span.end)

        what = f"triton: kernel {self._kernel} {does} {count} x {size} bytes outside of its tensors' memory"
        assert self._spans  # without a tensor a kernel has no address
        near = min(self._spans, key=away)
        if address < near.start:
            first = f"begins {near.start - address} bytes before"
        else:
            first = f"ends {address + size - near.end} bytes behind"
        return f"{what}; the first of them {first} `{near.name}`: look at the mask and the strides"


_GUARD = Guard(interpreter._interpreter)
interpreter._interpreter = _GUARD


def held(kernel: Any, arguments: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
    """Check a launch against the memory of its tensors, including those behind descriptors.

    Raises:
        OutsideOfTensors: in the context, if the kernel leaves that memory.
    """
    spans = []
    for name, argument in zip(kernel.arg_names, arguments, strict=False):
        tensor = getattr(argument, "base", argument)
        if isinstance(tensor, torch.Tensor):
            storage = tensor.untyped_storage()
            spans.append(Span(storage.data_ptr(), storage.data_ptr() + storage.nbytes(), name))
    return _GUARD.held(kernel.__name__, spans)
