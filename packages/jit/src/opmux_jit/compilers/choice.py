"""Which compiler is used: the one that was asked for, else the first that is installed and takes the arch."""

from collections.abc import Iterator, Mapping

from opmux.plugin import InvalidArgument
from opmux_jit.compilers import nvrtc, programs, tile, zig
from opmux_jit.compilers.compiler import Compiler, identity
from opmux_jit.compilers.source import Source
from opmux_jit.errors import CompilerMissing

OF_C = ("nvrtc", *(kind.name for kind in programs.KINDS), zig.NAME)
"""The compilers of C++, in the order in which they are tried."""
NAMES = (*OF_C, tile.NAME)
"""All compilers."""

_REMEDY = {
    "nvidia": 'pip install "opmux-jit[nvrtc]", or install a CUDA toolkit and set CUDA_HOME',
    "amd": 'install ROCm and set ROCM_PATH, or put clang++ on the path, or pip install "opmux-jit[zig]"',
}


def find(name: str) -> Compiler | None:
    """An installed compiler by name, or None."""
    if name == "nvrtc":
        return nvrtc.find()
    if name == zig.NAME:
        return zig.find()
    if name == tile.NAME:
        return tile.find()
    return programs.find(next(kind for kind in programs.KINDS if kind.name == name))


def installed() -> Iterator[Compiler]:
    """Every compiler of this machine."""
    yield from (compiler for name in NAMES if (compiler := find(name)) is not None)


def choose(source: Source, name: str | None = None) -> Compiler:
    """The compiler for a source.

    Args:
        source: what is to be compiled.
        name: one of `NAMES`; None takes the first that is installed and fits.

    Raises:
        InvalidArgument: where there is no compiler of this name.
        CompilerMissing: where none fits; the message has the reason of each.
    """
    if name is not None and name not in NAMES:
        raise InvalidArgument(f"compile: `compiler` expected one of {', '.join(NAMES)}, got {name!r}; leave it out")
    reasons: dict[str, str] = {}
    fitting = (tile.NAME,) if source.language == tile.NAME else OF_C
    for one in fitting if name is None else (name,):
        found = find(one)
        if one not in fitting:
            reasons[one] = f"it does not compile {source.language}"
            continue
        reason = "not found" if found is None else found.refusal(source)
        if found is not None and reason is None:
            return found
        reasons[one] = reason or ""
    raise CompilerMissing(_none_fits(source, reasons))


def likely_identity(source: Source, name: str | None) -> str | None:
    """The identity of the compiler that `choose` will return, where that can be told without loading a library."""
    if source.language == tile.NAME:  # its version is known without loading it
        found = tile.find()
        return None if found is None or name not in (None, tile.NAME) else identity(found)
    if source.vendor != "nvidia" or name not in (None, "nvrtc"):
        return None
    version = nvrtc.likely_version()
    return None if version is None else f"nvrtc {version}"


def _none_fits(source: Source, reasons: Mapping[str, str]) -> str:
    lines = "".join(f"\n  {name}: {reason}" for name, reason in reasons.items())
    remedy = _REMEDY[source.vendor]
    if source.language == tile.NAME:
        remedy = f"{tile.REMEDY}, or build it where that is installed: {prebuild_command(source)}"
    return f"{source.name}: no compiler for {source.arch}{lines}\n  try: {remedy}"


def prebuild_command(source: Source) -> str:
    """The command that builds a bundle with a source's kernels."""
    only = [f"--backend {source.backend}"] if source.backend else []
    only += [f"--op {source.op}"] if source.op else []
    return " ".join(["opmux prebuild --arch", source.arch.rstrip("af"), *only, "--shapes FILE --out DIR"])


def toolchains() -> Iterator[dict[str, str | None]]:
    """What `opmux doctor` shows: each compiler that the core does not look for itself."""
    for name in ("nvrtc", "clang", zig.NAME, tile.NAME):
        found = find(name)
        yield {
            "name": name,
            "version": found.version if found else None,
            "path": str(found.path) if found else None,
        }
