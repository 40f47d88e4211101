"""Compiles a kernel that another process described, into Triton's cache: what opmux's helper process does."""

import importlib
from collections.abc import Callable
from typing import Any

import torch
from triton.runtime.jit import TensorWrapper

from opmux_triton.aot.build import build_launcher, compile_launch
from opmux_triton.deferred import Description, Descriptor, Named, TensorLike
from opmux_triton.launch import Launch


def compile_described(described: Description) -> None:
    """Compile a kernel and the code that launches it into Triton's cache; needs no GPU.

    Raises:
        Exception: whatever the compilers raise.
    """
    arguments = tuple(_made(a) for a in described.arguments)
    meta = {name: _function(value) if isinstance(value, Named) else value for name, value in described.meta}
    compiled, _ = compile_launch(Launch(_function(described.kernel), (1,), arguments, meta), described.arch)
    build_launcher(compiled)


def _function(named: Named) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(importlib.import_module(named.module), named.name)
    return found


def _made(described: Any) -> Any:
    """An argument that Triton specialises like the one that was described; its tensors have no memory."""
    if isinstance(described, TensorLike):
        bytes_of = described.dtype.itemsize
        count = 64 if described.small else (1 << 31) // bytes_of + 64
        tensor = torch.empty(count, dtype=described.dtype, device="meta")
        tensor = tensor if described.aligned else tensor[1:]
        return tensor if described.seen_as is None else TensorWrapper(tensor, described.seen_as)
    if isinstance(described, Descriptor):
        base = torch.empty_strided(described.shape, described.strides, dtype=described.dtype, device="meta")
        fields = {name: list(value) if isinstance(value, tuple) else value for name, value in described.rest}
        return described.kind(base, **fields)
    return described
