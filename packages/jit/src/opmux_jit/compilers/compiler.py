"""What a compiler is to this package."""

from pathlib import Path
from typing import Protocol

from opmux_jit.compilers.source import Source
from opmux_jit.errors import CompileFailed


class Compiler(Protocol):
    """Compiles a source to machine code.

    Attributes:
        name: ``nvrtc``, ``nvcc``, ``hipcc``, ``clang`` or ``zig``.
        version: as the compiler states it, with the patch release: ``13.5.27``.
        path: the library or program.
        library: what else decides the code that it makes, with its version: the C++ standard library whose headers it
            finds, programs that it runs; empty where there is nothing.
    """

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def path(self) -> Path: ...
    @property
    def library(self) -> str: ...

    def refusal(self, source: Source) -> str | None:
        """Why this compiler cannot take the source's arch, or None."""
        ...

    def compile(self, source: Source, folder: Path) -> bytes:
        """Compile to a cubin or code object.

        Args:
            source: what to compile.
            folder: a folder of this build's own, for whatever the compiler wants to write.

        Raises:
            CompileFailed: with everything that the compiler said.
        """
        ...


def identity(compiler: Compiler) -> str:
    """What of a compiler is part of a cache key."""
    named = f"{compiler.name} {compiler.version}"
    return f"{named} with {compiler.library}" if compiler.library else named


def failure(compiler: Compiler, source: Source, said: str, path: Path) -> CompileFailed:
    """The error of a source that the compiler refused; ``said`` is kept whole."""
    return CompileFailed(
        f"{source.name}: {identity(compiler)} ({compiler.path}) could not compile it for {source.arch}\n"
        f"  source: {path}\n{said.rstrip()}"
    )
