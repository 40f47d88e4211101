"""Builds a bundle: every backend's kernels for recorded calls, for an arch that this machine need not have."""

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from opmux.plugin import InvalidArgument, known_arch, prebuilders
from opmux.shapes import Point
from opmux_jit.__about__ import __version__
from opmux_jit.cache import bundles
from opmux_jit.errors import CacheRefused

BYTES_PER_PROCESS = 2 << 30
"""The memory that a compiler's process may take."""

MAX_JOBS = "MAX_JOBS"
"""The variable that torch's builds of extensions are limited by too."""
MOST_PROCESSES = 1 << 10

Tick = Callable[[str, int, int], None]
"""Told of a backend, its finished kernels and all of them."""


@dataclass
class Result:
    """What was built.

    Attributes:
        kernels: by backend, how many kernels the bundle has.
        failures: what could not be built, a line each.
        written: whether the bundle was written. False where kernels could not be built and there was a bundle already,
            which is kept.
    """

    kernels: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    written: bool = True


def default_processes() -> int:
    """One for each core that is available, as far as the memory suffices; ``MAX_JOBS`` limits them further.

    Raises:
        InvalidArgument: where ``MAX_JOBS`` is no positive number.
    """
    named = os.environ.get(MAX_JOBS, "").strip()
    if named and not (named.isascii() and named.isdigit() and int(named)):
        raise InvalidArgument(
            f"prebuild: `{MAX_JOBS}` expected a number of processes, got {named!r}; set it to 1 or more"
        )
    limit = int(named) if named else MOST_PROCESSES
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)), memory // BYTES_PER_PROCESS, limit))


def prebuild(
    archs: Sequence[str],
    points: Sequence[Point],
    out: Path,
    *,
    backend: str | None = None,
    ops: Sequence[str] = (),
    processes: int | None = None,
    tick: Tick = lambda *_: None,
) -> Result:
    """Build a bundle.

    Args:
        archs: what to compile for.
        points: the calls.
        out: the bundle's folder; it is made, and must not exist, be empty, or be a bundle, which is replaced if
            every kernel could be built.
        backend: only this one's kernels.
        ops: only calls of these ops.
        processes: how many compile; None takes `default_processes`.
        tick: told of the progress.

    Raises:
        InvalidArgument: where an arch, the backend or an op is none, no call is left, or the folder has other files.
        OSError: where the folder cannot be written.
    """
    known = prebuilders()
    for arch in archs:
        known_arch(arch)
    if backend is not None and backend not in known:
        names = ", ".join(sorted(known)) or "none is installed"
        raise InvalidArgument(
            f"prebuild: `--backend` expected one that compiles ahead ({names}), got {backend!r}; see `opmux backends`"
        )
    wanted = [point for point in points if not ops or point.op in ops]
    if not wanted:
        raise InvalidArgument(
            f"prebuild: `--shapes` expected calls of {', '.join(ops) or 'ops'}, got none; record some"
        )
    place = out.resolve()  # "." has no name
    replaces = _has_bundle(place, out)
    result, made_with = Result(), {"opmux-jit": __version__}
    building = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        for name in [backend] if backend else sorted(known):
            for arch in archs:
                folder = building / name
                folder.mkdir(parents=True, exist_ok=True)
                count = processes or default_processes()
                done = known[name](arch, wanted, folder, count, lambda n, of, name=name: tick(name, n, of))  # type: ignore[misc]
                result.kernels[name] = result.kernels.get(name, 0) + done.kernels
                result.failures += done.failures
                made_with |= done.made_with
        result.written = not (result.failures and replaces)
        if result.written:
            bundles.write(building, archs, made_with)
            _replace(place, building)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return result


def _has_bundle(place: Path, out: Path) -> bool:
    """Whether a folder is a bundle; False where it is empty or does not exist.

    Raises:
        InvalidArgument: where it is anything else.
    """
    if not place.exists() or (place.is_dir() and not any(place.iterdir())):
        return False
    try:
        bundles.Bundle(place)
    except CacheRefused as refusal:
        raise InvalidArgument(
            f"prebuild: `--out` expected a new or empty folder, or a bundle, got {out}; choose another\n"
            f"  reason:    {refusal}"
        ) from None
    return True


def _replace(place: Path, building: Path) -> None:
    """Put a new bundle in the place of what is there, which is removed last."""
    if not place.exists():
        building.rename(place)
        return
    old = building.with_name(f"{building.name}.old")
    place.rename(old)
    try:
        building.rename(place)
    except OSError:
        old.rename(place)
        raise
    shutil.rmtree(old)
