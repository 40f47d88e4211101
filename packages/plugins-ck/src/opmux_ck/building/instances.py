"""One translation unit an instance: its source, and its machine code from the cache or a compiler."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from opmux_ck.building.toolchain import FLAGS, NAMES, compiler_for, include_dirs, templates_digest
from opmux_ck.library.headers import generated
from opmux_ck.library.places import Library, LibraryMissing, library_for
from opmux_jit import (
    CompilerMissing,
    Entry,
    Source,
    compiling_forbidden,
    kept,
    kept_without_headers,
    machine_code,
    named_bundles,
)
from opmux_jit.compilers import Compiler

_HEADER = re.compile(r'^#include "([^"]+)"$', re.MULTILINE)
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
    library = library_for(_part(instance))
    compiler = compiler_for(instance.name, arch)
    return _source(instance, arch, include_dirs(compiler.name), library), compiler


def code_of(instance: Instance, arch: str) -> Entry:
    """The machine code of an instance: found in the cache or a bundle, else built.

    What is found needs no compiler. It needs CK only for the key, which has the contents of CK's headers: without them,
    an entry will do that was made from the same translation unit and the same templates of this package.

    Raises:
        LibraryMissing: it must be built, and there is no CK.
        CompilerMissing: it must be built, and there is no compiler.
        KernelMissing: it must be built, and ``OPMUX_NO_JIT`` forbids it.
        CompileFailed: the compiler refuses it.
    """
    try:
        library = library_for(_part(instance))
    except LibraryMissing:
        source = _source(instance, arch, ())
        found = kept_without_headers(source)
        if found is None and compiling_forbidden():
            return machine_code(source)  # raises: that CK is not here does not matter then
        if found is None:
            raise
        return found
    try:
        compiler = compiler_for(instance.name, arch)
    except CompilerMissing:
        sources = [_source(instance, arch, include_dirs(name), library) for name in NAMES]
        found = _kept(sources)
        if found is None and compiling_forbidden():
            return machine_code(sources[0])  # raises
        if found is None:
            raise
        return found
    first = (compiler.name, *(name for name in NAMES if name != compiler.name))
    sources = [_source(instance, arch, include_dirs(name), library) for name in first]
    found = _kept(sources) if compiling_forbidden() or named_bundles() else None
    return found or machine_code(sources[0], compiler.name)


def _part(instance: Instance) -> str:
    """The op, or the part of it that needs more of CK than the others, see `opmux_ck.library.places.PARTS`."""
    return getattr(instance, "part", instance.op)


def _kept(sources: Iterable[Source]) -> Entry | None:
    """What the cache or a bundle has of sources that differ in the HIP headers that they include."""
    apart = {source.include_dirs: source for source in sources}
    return next((found for source in apart.values() if (found := kept(source)) is not None), None)


def _source(instance: Instance, arch: str, include: Iterable[Path], library: Library | None = None) -> Source:
    text = instance.text()
    (header,) = _HEADER.findall(text)
    text += f"// built with {templates_digest(header)}\n"
    folders, headers = ((), {}) if library is None else ((library.include,), generated(library))
    return Source(instance.name, text, arch, FLAGS, (*include, *folders), headers, ABI, "ck", instance.op)
