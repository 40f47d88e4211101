"""Compiles the instances of recorded calls ahead, as entries of a bundle that opmux-jit reads."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from opmux.plugin import BuildFailed, Prebuilt, registered_ops, takers
from opmux.shapes import Point
from opmux_ck.__about__ import __version__
from opmux_ck.building.calls import instances_of
from opmux_ck.building.instances import Instance, source_of
from opmux_ck.library.places import NEEDED
from opmux_jit import machine_code
from opmux_jit.cache import bundles, entry

BACKEND = "ck"


def prebuild(
    arch: str, points: Sequence[Point], folder: Path, workers: int, tick: Callable[[int, int], None]
) -> Prebuilt:
    """Compile every instance that the calls would launch; those that the user's cache has are copied.

    Args:
        arch: what to compile for.
        points: the calls; those that this backend does not take have no instance.
        folder: this backend's in the bundle; entries lie beside it.
        workers: compilers that run at a time.
        tick: told the number of finished and of all instances.
    """
    failures: list[str] = []
    wanted = list(dict.fromkeys(_instances(arch, points, failures)))
    place = folder.parent / bundles.ENTRIES
    made_with: dict[str, str] = {}
    built = 0
    with ThreadPoolExecutor(workers) as pool:
        for done, (compiler, problem) in enumerate(pool.map(partial(_build, place, arch), wanted), 1):
            if problem:
                failures.append(problem)
            else:
                built += 1
                name, _, version = compiler.partition(" ")
                made_with |= {name: version, "opmux-ck": __version__}  # templates of another version are not found
            tick(done, len(wanted))
    return Prebuilt(built, failures, made_with)


def _instances(arch: str, points: Sequence[Point], failures: list[str]) -> Iterator[Instance]:
    ops = registered_ops()
    for point in points:
        if point.op.rstrip("_") not in NEEDED:
            continue
        try:
            for taker in takers(ops[point.op], *point.tensors().values(), arch=arch, backend=BACKEND, **point.options):
                yield from instances_of(point.op, taker.call, taker.config())
        except Exception as error:  # one call's failure must not hide the others
            failures.append(f"{point.key} {BACKEND}: {type(error).__name__}: {error}")


def _build(place: Path, arch: str, instance: Instance) -> tuple[str, str]:
    """Build one instance; returns the compiler, and what went wrong."""
    try:
        source, compiler = source_of(instance, arch)
        made = machine_code(source, compiler.name)
        (place / made.key).mkdir(parents=True, exist_ok=True)
        entry.write(place / made.key, made)
    except (BuildFailed, OSError) as error:
        return "", f"{instance.name} for {arch}: {error}"
    return made.compiler, ""
