"""Poison the memory that a target allocates, and guard it if it is allocated from Python.

While a target runs, torch fills the memory of every ``empty`` with NaN (deterministic mode, in the form that only
warns, so that no operation is refused). Python's allocating functions return views of larger buffers, the rest of
which is watched. Just before, blocks of the outputs' sizes are filled with NaN and freed, so that allocations that
torch does not control are likely to contain NaN as well.
"""

import functools
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from opmux.testing.memory import Guarded, guarded_empty, poison_


@contextmanager
def poisoned() -> Iterator[list[Guarded]]:
    """Poison and guard memory allocated in the block; yields the guarded buffers, whose guards the caller checks."""
    allocated: list[Guarded] = []
    mode = torch.get_deterministic_debug_mode()
    memory: Any = torch.utils.deterministic
    fill = memory.fill_uninitialized_memory
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.set_deterministic_debug_mode("warn")
        memory.fill_uninitialized_memory = True
        try:
            with _guarded_allocation(allocated):
                yield allocated
        finally:
            memory.fill_uninitialized_memory = fill
            torch.set_deterministic_debug_mode(mode)


def poison_freed(forms: Sequence[tuple[tuple[int, ...], torch.dtype]], device: torch.device) -> None:
    """Fill blocks of these shapes with poison and free them: the next blocks of that size are likely the same."""
    blocks = [poison_(torch.empty(shape, dtype=dtype, device=device)) for shape, dtype in forms for _ in range(2)]
    del blocks


_FUNCTIONS = ("empty", "empty_like", "empty_strided", "zeros", "zeros_like")
_METHODS = ("new_empty", "new_empty_strided", "new_zeros")
_COMPILED = ("_empty_strided_cpu", "_empty_strided_cuda")
"""What compiled code allocates by, and backends that save the host time; these heed no deterministic mode."""
_lock = threading.RLock()


@contextmanager
def _guarded_allocation(allocated: list[Guarded]) -> Iterator[None]:
    """Make Python's allocations inside larger buffers."""
    thread = threading.get_ident()
    ended = False  # code that is compiled in the block keeps the functions it found there

    def guarding(original: Callable[..., Any], zeros: bool) -> Callable[..., Any]:
        @functools.wraps(original)
        def allocate(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            elsewhere = ended or torch.compiler.is_dynamo_compiling() or threading.get_ident() != thread
            if elsewhere or not _may_be_guarded(made):
                return made
            # Allocate once here and again in a larger buffer: torch itself interprets size, dtype and device.
            strides = made.stride()
            twin = guarded_empty(tuple(made.shape), made.dtype, made.device, strides=strides)
            if zeros:
                twin.tensor.zero_()
            twin.remember()
            allocated.append(twin)
            return twin.tensor.requires_grad_() if made.requires_grad else twin.tensor

        return allocate

    with _lock:
        originals: list[tuple[Any, str, Any]] = [(torch, name, getattr(torch, name)) for name in _FUNCTIONS]
        originals += [(Tensor, name, getattr(Tensor, name)) for name in _METHODS]
        compiled: Any = torch._C._dynamo.guards
        originals += [(compiled, name, getattr(compiled, name)) for name in _COMPILED if hasattr(compiled, name)]
        for owner, name, original in originals:
            setattr(owner, name, guarding(original, "zeros" in name))
        try:
            yield
        finally:
            ended = True
            for owner, name, original in originals:
                if owner is Tensor:
                    delattr(Tensor, name)  # it was inherited
                else:
                    setattr(owner, name, original)


def _may_be_guarded(made: Any) -> bool:
    return (
        type(made) is Tensor
        and made.layout == torch.strided
        and made.numel() > 0
        and made.device.type in ("cpu", "cuda")
        and not made.is_pinned()
    )
