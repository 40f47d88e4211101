"""Launches of the Triton backend, made on the emulator: an op's target called with CPU tensors runs as on an arch."""

import math
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from opmux_emulator import Memory, Program, Report
from opmux_emulator import launch as emulate


class Executing(list[Any]):
    """Stands for the recording's list: what is appended is compiled and executed."""

    def __init__(self, arch: str) -> None:
        super().__init__()
        self.arch = arch
        self.reports: list[Report] = []

    def append(self, launch: Any) -> None:
        compiled, values = compile_launch(launch, self.arch)
        memory, arguments = Memory(), []
        for value in values:
            arguments.append(place(value, memory) if isinstance(value, torch.Tensor) else value)
        program = Program(compiled.asm["hsaco"])
        (name,) = program.kernels
        threads = 64 * compiled.metadata.num_warps
        self.reports.append(
            emulate(
                program, name, launch.grid, (threads,), arguments, memory=memory, dynamic_lds=compiled.metadata.shared
            )
        )


def place(tensor: torch.Tensor, memory: Memory) -> int:
    """A tensor's whole storage in the emulator's memory, and the address of its first element."""
    storage = tensor.untyped_storage()
    if not storage.nbytes():
        return 0
    whole = torch.empty(0, dtype=torch.uint8).set_(storage)
    address = whole.numpy().__array_interface__["data"][0]
    for block in memory.blocks:
        if block.data.__array_interface__["data"][0] == address:
            return block.base + tensor.storage_offset() * tensor.element_size()
    return memory.add(whole.numpy()) + tensor.storage_offset() * tensor.element_size()


def compile_launch(launch: Any, arch: str) -> tuple[Any, list[Any]]:
    """What Triton compiles for a launch, and the arguments that the code takes."""
    import triton
    from triton.compiler import ASTSource, make_backend
    from triton.runtime.jit import create_function_from_signature

    from opmux_triton.aot.build import target_of

    target, kernel = target_of(arch), launch.kernel
    backend = make_backend(target)
    binder = create_function_from_signature(kernel.signature, kernel.params, backend)
    given = {"debug": False, **launch.meta}
    bound, specialization, options = binder(*launch.arguments, **given)
    options, signature, constants, attributes = kernel._pack_args(backend, given, bound, specialization, options)
    compiled = triton.compile(
        ASTSource(kernel, signature, constants, attributes), target=target, options=options.__dict__
    )
    values = [bound[name] for name, kind in signature.items() if kind != "constexpr"]
    return compiled, [np.float32(v) if isinstance(v, float) and math.isfinite(v) else v for v in values]


@contextmanager
def on(arch: str) -> Any:
    """Within it, launches run on the emulator."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opmux_triton.launch import recording

        with recording(arch) as recorded:
            recorded.launches = Executing(arch)
            yield recorded.launches


def target_of_implementation(op: str) -> Callable[..., Any]:
    """The Triton backend's function for an op."""
    import importlib

    from opmux.plugin import registered_ops

    for implementation in registered_ops()[op].op.implementations:
        if implementation.backend == "triton":
            module, _, name = str(implementation.target).partition(":")
            return getattr(importlib.import_module(module), name)
    raise LookupError(op)
