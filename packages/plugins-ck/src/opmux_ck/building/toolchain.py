"""Which compiler builds the instances, with which headers and flags."""

import functools
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from opmux_jit.compilers import Compiler, find
from opmux_jit.errors import CompilerMissing

NAMES = ("hipcc", "zig", "clang")
"""In the order in which they are tried: ROCm's own first, then the one whose version a package pins."""
OLDEST = {"clang": (19,), "zig": (0, 17)}
"""Versions below which a compiler is not taken. CK was built here with zig 0.17, which is clang 22; clang 19 is known
to build it too, and to spill registers where newer ones do not."""

TEMPLATES = Path(__file__).parent.parent / "cpp"
"""This package's own headers: a thin template for each op."""
_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
FLAGS = (
    "-std=c++20",
    "-w",
    "-DNDEBUG",
    "-D__HIP_PLATFORM_AMD__=1",
    "-DCK_TILE_FLOAT_TO_BFLOAT16_DEFAULT=0",  # round to nearest; CK truncates unless told otherwise
    # What lies past the end of a row is not read. CK otherwise reads it and throws it away: memory that another
    # workgroup may be writing.
    "-DCK_TILE_EXPERIMENTAL_USE_BUFFER_LOAD_OOB_CHECK_OFFSET_TRICK=1",
    "-mllvm",
    "-amdgpu-function-calls=false",  # else some templates keep calls, and with them scratch memory
)


def compiler_for(name: str, arch: str) -> Compiler:
    """The compiler for an instance.

    Args:
        name: of the instance, for the error.
        arch: what it is compiled for.

    Raises:
        CompilerMissing: none is installed that can build CK; the message has the reason of each.
    """
    reasons = {}
    for one in NAMES:
        found = find(one)
        reason = "not found" if found is None else _refusal(found)
        if found is not None and reason is None:
            return found
        reasons[one] = reason
    lines = "".join(f"\n  {one}: {reason}" for one, reason in reasons.items())
    raise CompilerMissing(
        f"{name}: no compiler for {arch}{lines}\n"
        '  try: install ROCm and set ROCM_PATH, or pip install "opmux-ck[compiler]"'
    )


def _refusal(compiler: Compiler) -> str | None:
    oldest = OLDEST.get(compiler.name, ())
    found = tuple(int(part) for part in re.findall(r"\d+", compiler.version)[: len(oldest)])
    if found < oldest:
        return f"{compiler.path} is version {compiler.version}, older than {'.'.join(map(str, oldest))}"
    return None


@functools.cache
def templates_digest(header: str) -> str:
    """A digest of one of this package's headers, of those that it includes, and of the flags.

    A translation unit names it: it tells versions of them apart. An instance that is loaded without headers and a
    compiler is known by its text alone.
    """
    hashed = hashlib.sha256()
    hashed.update("\0".join(FLAGS).encode())
    for path in sorted({*_included(TEMPLATES / header), *(TEMPLATES / "hip_subset").rglob("*.h")}):
        hashed.update(path.relative_to(TEMPLATES).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return hashed.hexdigest()[:16]


def _included(header: Path) -> Iterator[Path]:
    """A header of this package, and those of this package that it includes."""
    yield header
    for name in _INCLUDE.findall(header.read_text(encoding="utf-8")):
        if (TEMPLATES / name).is_file():
            yield from _included(TEMPLATES / name)


def include_dirs(compiler: str) -> Iterator[Path]:
    """Folders of this package's headers for a compiler.

    hipcc has ROCm's HIP headers, the others get the few lines that CK needs.
    """
    yield TEMPLATES
    if compiler != "hipcc":
        yield TEMPLATES / "hip_subset"
