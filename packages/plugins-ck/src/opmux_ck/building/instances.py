"""One translation unit an instance: its source, and its machine code from the cache or a compiler."""

from typing import Protocol

from opmux_ck.building.toolchain import FLAGS, compiler_for, include_dirs
from opmux_ck.library.headers import generated
from opmux_ck.library.places import library_for
from opmux_jit import Source
from opmux_jit.compilers import Compiler

ABI = 1
"""The version of the agreement on a kernel's arguments."""


class Instance(Protocol):
    """A template of CK with its arguments filled in.

    Attributes:
        op: whose kernel it is.
        name: what it is, for people: ``rms_norm_bf16_bf16_r1x4096_t1x256_v8``.
        kernel: the name of the ``extern "C"`` kernel.
        signature: of the kernel's arguments, in the letters of `opmux_jit.load`.
        threads: of a workgroup.
    """

    @property
    def op(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def kernel(self) -> str: ...
    @property
    def signature(self) -> str: ...
    @property
    def threads(self) -> int: ...

    def text(self) -> str:
        """The translation unit."""
        ...


def source_of(instance: Instance, arch: str) -> tuple[Source, Compiler]:
    """The source of an instance, and the compiler that it was written for.

    Raises:
        LibraryMissing: there is no CK to build it from.
        CompilerMissing: there is no compiler that builds it.
    """
    library = library_for(instance.op)
    compiler = compiler_for(instance.name, arch)
    source = Source(
        instance.name, instance.text(), arch, FLAGS, (*include_dirs(compiler), library.include), generated(library),
        ABI, "ck", instance.op,
    )  # fmt: skip
    return source, compiler
