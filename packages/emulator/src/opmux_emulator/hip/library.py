"""Where the HIP library is, and what a process needs to find it."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from opmux_emulator.errors import EmulatorError
from opmux_emulator.isa.opcodes import ARCHS
from opmux_emulator.native import build
from opmux_emulator.native.library import cache_folder, path_of_library, private_folder
from opmux_emulator.running.report import RULES

SONAMES = ("libamdhip64.so", "libamdhip64.so.5", "libamdhip64.so.6", "libamdhip64.so.7")
"""The names that programs ask for, by the HIP that they were built with."""


def library() -> Path:
    """The path of ``libamdhip64.so``, in a folder that has it under every name of :data:`SONAMES`.

    Raises:
        opmux_emulator.native.build.BuildError: no wheel brought it, and it cannot be built; or others can write to its
            folder.
    """
    built = path_of_library(build.HIP)
    folder = private_folder(cache_folder() / f"hip-{build.digest(build.HIP)}")
    for name in SONAMES:
        link = folder / name
        if not link.exists() or link.resolve() != built.resolve():
            fresh = folder / f".{name}.{os.getpid()}"
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(built)
            fresh.replace(link)
    return folder / SONAMES[0]


def settings(
    arch: str = "gfx942",
    *,
    report: str | Path | None = None,
    ignore: Iterable[str] = (),
    limit: int | None = None,
    pageable: bool = False,
    python: str | None = None,
) -> str:
    """The value of ``OPMUX_HIP``.

    Args:
        arch: what the device plays: gfx90a, gfx942 or gfx950.
        report: a file to which each launch appends its report, one JSON object a line.
        ignore: rules that are not applied.
        limit: instructions that a wave may execute.
        pageable: kernels may use any memory of the process, as on a device that takes page faults. Without it, what was
            neither allocated nor registered through HIP is out of bounds.
        python: the Python that reads code objects; it needs this package.

    Raises:
        EmulatorError: an arch or a rule that there is not, or a path with a space in it.
    """
    if arch not in ARCHS:
        raise EmulatorError(f"`arch`: expected one of {', '.join(ARCHS)}, got {arch!r}")
    for rule in (ignored := list(ignore)):
        if rule not in RULES:
            raise EmulatorError(f"`ignore`: no rule {rule!r}; the rules are {', '.join(RULES)}")
    words = [arch, f"python={python or sys.executable}"]
    words += ["pageable"] if pageable else []
    words += [f"report={Path(report).absolute()}"] if report else []
    words += [f"ignore={','.join(ignored)}"] if ignored else []
    words += [f"limit={limit}"] if limit is not None else []
    for word in words:
        if " " in word:
            raise EmulatorError(f"OPMUX_HIP: expected paths without spaces, got {word!r}")
    return " ".join(words)


def environment(arch: str = "gfx942", **options: object) -> dict[str, str]:
    """Variables with which a new process finds the library, and Triton too; the rest is as for :func:`settings`."""
    path = library()
    search = [str(path.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {
        "LD_LIBRARY_PATH": ":".join(search),
        "TRITON_LIBHIP_PATH": str(path),
        "OPMUX_HIP": settings(arch, **options),  # type: ignore[arg-type]
    }
