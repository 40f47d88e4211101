"""Compiles a job for an arch, without a GPU, and keeps what the checks need."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import create_function_from_signature

from opmux_triton.archs import wave_size
from opmux_triton.cache_keys import settle
from opmux_triton.launch import Launch

TALL = 64
"""Rows from which a dot in 16 or 8 bits on sm_90 can be a warpgroup instruction."""


@dataclass(frozen=True)
class Built:
    """The result of a compilation.

    Attributes:
        text: the assembly that the compiler wrote: amdgcn, or PTX.
        binary: the machine code: hsaco, or cubin.
        shared: bytes of LDS or shared memory.
    """

    arch: str
    text: str
    binary: bytes
    shared: int
    num_warps: int
    dots: frozenset[str]
    """The dots of the kernel's IR: ``tall`` (16 or 8 bits, 64 rows or more), ``short``, ``f32_ieee``, ``f32``."""

    @property
    def has_dot(self) -> bool:
        """Whether the kernel multiplies matrices."""
        return bool(self.dots)


def target_of(arch: str) -> GPUTarget:
    """Triton's name of an arch: ``("hip", "gfx942", 64)``, ``("cuda", 90, 32)``."""
    if arch.startswith("gfx"):
        return GPUTarget("hip", arch, wave_size(arch))
    return GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)


def compile_launch(launch: Launch, arch: str) -> tuple[Any, tuple[Any, ...]]:
    """Compile a launch as Triton would when it is called.

    Returns:
        What Triton compiled, and the arguments that the code takes, in order.

    Raises:
        Exception: whatever the compiler raises.
    """
    target = target_of(arch)
    backend = make_backend(target)
    kernel = launch.kernel
    settle(kernel)
    binder = create_function_from_signature(kernel.signature, kernel.params, backend)
    given: Mapping[str, Any] = {"debug": False, **launch.meta}
    bound, specialization, options = binder(*launch.arguments, **given)
    options, signature, constants, attributes = kernel._pack_args(backend, given, bound, specialization, options)
    source_class = ASTSource
    if kernel.is_gluon():
        from triton.experimental.gluon._runtime import GluonASTSource

        source_class = GluonASTSource
    source = source_class(kernel, signature, constants, attributes)
    compiled = triton.compile(source, target=target, options=options.__dict__)
    return compiled, tuple(bound[name] for name, kind in signature.items() if kind != "constexpr")


def build_launcher(compiled: Any) -> None:
    """Compile the C code that launches a kernel into Triton's cache; from Triton 3.9 on there is none.

    Raises:
        Exception: where there is no C compiler or no driver's library to link with.
    """
    if compiled.metadata.target.backend == "cuda" and hasattr(driver, "make_launcher"):
        driver.CudaLauncher(compiled.src, compiled.metadata)


def build(launch: Launch, arch: str) -> Built:
    """Compile a launch and keep what the checks need.

    Raises:
        Exception: whatever the compiler raises.
    """
    compiled, _ = compile_launch(launch, arch)
    amd = arch.startswith("gfx")
    text = compiled.asm["amdgcn" if amd else "ptx"]
    return Built(
        arch,
        text,
        compiled.asm["hsaco" if amd else "cubin"],
        compiled.metadata.shared,
        compiled.metadata.num_warps,
        dots_of(compiled.asm.get("ttir", "")) | dots_of(compiled.asm.get("ttgir", "")),
    )


def dots_of(ir: str) -> frozenset[str]:
    """The kinds of dots in a kernel's IR."""
    found = set()
    for line in ir.splitlines():
        if "= tt.dot " not in line and "warp_group_dot " not in line:
            continue
        operands = line.rpartition(" : ")[2]
        sizes = re.search(r"<(\d+)x\d+x(\w+)", operands)
        if sizes is None:
            found.add("short")
        elif sizes[2] == "f32":
            found.add("f32" if "inputPrecision" in line and "ieee" not in line else "f32_ieee")
        else:
            found.add("tall" if int(sizes[1]) >= TALL else "short")
    return frozenset(found)
