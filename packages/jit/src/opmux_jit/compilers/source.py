"""The source of a kernel, with everything that decides what a compiler makes of it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from opmux.plugin import InvalidArgument

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_HEADER_FLAGS = ("-I", "--include", "-include", "-isystem", "--pre-include")
_ARCH = re.compile(r"sm_\d{2,3}[af]?|gfx[0-9a-f]{3,4}")


@dataclass(frozen=True)
class Source:
    """The source of one or more kernels, for one arch.

    Attributes:
        name: what messages and files call it: letters, digits, ``_``, ``.``, ``-``.
        text: CUDA C++, HIP C++ or cuda.tile Python. Kernels are looked up by name in the machine code: in C++, declare
            them ``extern "C"``.
        arch: what to compile for, in the toolchain's words: ``sm_90``, ``sm_90a``, ``gfx942``.
        flags: further options of the compiler, in order.
        include_dirs: where headers are looked for; relative ones are made absolute, as compilers run in other folders.
        headers: headers that exist only in memory, by the name that ``#include`` uses: a relative one without ``..``.
        abi: the version of the agreement between kernel and launching code; part of the cache key.
        backend, op: for whom it is built; named in errors, and no part of the cache key.
        language: what ``text`` is in: ``c++``, or ``cutile`` for cuda.tile Python (see `opmux_jit.compilers.tile`).

    Raises:
        InvalidArgument: where ``name``, ``arch`` or a header's name is malformed, or a flag names a folder of headers.
    """

    name: str
    text: str
    arch: str
    flags: tuple[str, ...] = ()
    include_dirs: tuple[Path, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    abi: int = 1
    backend: str = ""
    op: str = ""
    language: Literal["c++", "cutile"] = "c++"

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidArgument(
                f"Source: `name` expected letters, digits, '_', '.' and '-', got {self.name!r}; rename the source"
            )
        if not _ARCH.fullmatch(self.arch):
            raise InvalidArgument(
                f"Source: `arch` expected an arch of NVIDIA's or AMD's compilers, got {self.arch!r}; write it as "
                "sm_90, sm_90a or gfx942"
            )
        for header in self.headers:
            path = PurePosixPath(header)
            if not path.parts or path.is_absolute() or ".." in path.parts:
                raise InvalidArgument(
                    f"Source: `headers` expected relative names without '..', got {header!r}; name it as `#include` "
                    "does"
                )
        object.__setattr__(self, "include_dirs", tuple(Path(place).absolute() for place in self.include_dirs))
        for flag in self.flags:
            if flag.startswith(_HEADER_FLAGS):
                raise InvalidArgument(
                    f"Source: `flags` expected no headers or folders of headers, got {flag!r}; name them in "
                    "`include_dirs` or `headers`, so that the cache sees their contents"
                )

    @property
    def vendor(self) -> str:
        """``nvidia`` or ``amd``."""
        return "nvidia" if self.arch.startswith("sm_") else "amd"

    @property
    def suffix(self) -> str:
        """The suffix of the source's file."""
        if self.language == "cutile":
            return ".py"
        return ".cu" if self.vendor == "nvidia" else ".hip"
