"""Kernels that a call is not to wait for: noticed before they are compiled, and compiled by opmux's helper process.

Triton asks its cache before it compiles anything, a kernel or the C code that launches it (of Triton before 3.9). While
a build is `deferring`, the cache raises instead of saying that it has nothing. What is missing is described by what
Triton specialises on, so that the description can be sent to another process, which compiles it into the same cache.
"""

import functools
import importlib
import pickle
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton.runtime.cache import FileCacheManager
from triton.runtime.jit import TensorWrapper

from opmux.plugin import Build
from opmux_triton.bundled import LAUNCHER

COMPILE = "opmux_triton.aot.described:compile_described"
"""What the helper process calls with a description."""


class Missing(Exception):
    """Triton's cache does not have what is asked for, and it is not to be compiled now."""


class _Deferring(threading.local):
    on = False


_thread = _Deferring()
_lock = threading.Lock()


@functools.cache
def _raising(base: Any) -> Any:
    """A cache of Triton's that raises where it has nothing, in threads that are `deferring`."""

    class RaisingCache(base):  # type: ignore[misc]
        def get_group(self, filename: str) -> Any:
            found = super().get_group(filename)
            if found is None and _thread.on:
                raise Missing(filename)
            return found

        def get_file(self, filename: str) -> Any:
            found = super().get_file(filename)
            if found is None and _thread.on and filename.startswith(LAUNCHER):
                raise Missing(filename)
            return found

    return RaisingCache


@contextmanager
def deferring() -> Iterator[None]:
    """In this context, `Missing` is raised where Triton would compile."""
    knobs = triton.knobs.cache
    with _lock:  # nothing is compiled meanwhile, so nobody waits long
        before = knobs.manager_class
        knobs.manager_class, _thread.on = _raising(before or FileCacheManager), True
        try:
            yield
        finally:
            knobs.manager_class, _thread.on = before, False


@dataclass(frozen=True)
class Named:
    """A kernel or function under ``triton.jit``, by name."""

    module: str
    name: str


@dataclass(frozen=True)
class TensorLike:
    """What Triton specialises on: the dtype, whether the address is a multiple of 16, whether 32 bits reach all of it.

    Attributes:
        seen_as: Triton's dtype, where the kernel sees the elements as another one.
    """

    dtype: torch.dtype
    aligned: bool
    small: bool
    seen_as: Any = None


@dataclass(frozen=True)
class Descriptor:
    """A tensor descriptor: its class, its tensor's dtype, and everything else that it has."""

    kind: type
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    rest: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Description:
    """A launch that can be sent to another process."""

    kernel: Named
    arch: str
    arguments: tuple[Any, ...]
    meta: tuple[tuple[str, Any], ...]


def build_of(
    kernel: Any, arguments: Sequence[Any], meta: Mapping[str, Any], arch: str, specialised: Sequence[bool]
) -> Build | None:
    """What is to be built for a launch; None where it cannot be described, so that it must be built here.

    Args:
        kernel: the kernel.
        arguments: what precedes its constants.
        meta: the constants and Triton's options.
        arch: what it is compiled for.
        specialised: for each parameter, whether Triton specialises it on the value 1 and on multiples of 16.
    """
    try:
        described = Description(
            _named(kernel),
            arch,
            tuple(_described(a, special) for a, special in zip(arguments, specialised, strict=False)),
            tuple((name, _constant(value)) for name, value in meta.items()),
        )
        pickle.dumps(described)
    except (AttributeError, LookupError, TypeError, pickle.PicklingError):  # what cannot be named, or sent
        return None
    return Build(f"kernel {described.kernel.name}", repr(described), COMPILE, (described,))


def _named(kernel: Any) -> Named:
    """A kernel's name.

    Raises:
        LookupError: where it is not found by that name.
    """
    named = Named(kernel.__module__, kernel.__name__)
    if getattr(importlib.import_module(named.module), named.name, None) is not kernel:
        raise LookupError(named.name)
    return named


def _described(argument: Any, special: bool) -> Any:
    if isinstance(argument, TensorWrapper):
        return _tensor(argument.base, argument.dtype)
    if isinstance(argument, torch.Tensor):
        return _tensor(argument)
    if isinstance(argument, int) and not isinstance(argument, bool):
        wide = not -0x80000000 <= argument < 0x80000000
        like = 16 if special and argument & 15 == 0 else 1 if special and argument == 1 else 3
        return like + (1 << 40) * wide
    if isinstance(argument, float):
        return 0.5
    if argument is None or isinstance(argument, bool):
        return argument
    rest = tuple((name, value) for name, value in vars(argument).items() if name != "base")
    base = argument.base
    return Descriptor(type(argument), base.dtype, tuple(base.shape), tuple(base.stride()), _hashable(rest))


def _tensor(tensor: torch.Tensor, seen_as: Any = None) -> TensorLike:
    small = tensor.untyped_storage().size() < 1 << 31
    return TensorLike(tensor.dtype, tensor.data_ptr() % 16 == 0, small, seen_as)


def _hashable(rest: tuple[tuple[str, Any], ...]) -> tuple[tuple[str, Any], ...]:
    return tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in rest)


def _constant(value: Any) -> Any:
    return _named(value) if isinstance(value, triton.JITFunction) else value
