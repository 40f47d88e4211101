"""Compiles the kernels of recorded calls ahead, as entries of a bundle that opmux-jit reads."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from opmux.plugin import BuildFailed, Prebuilt, Taker, registered_ops, takers
from opmux.shapes import Point
from opmux_cutile.archs import BACKEND, UNPROVED
from opmux_cutile.cubin import checked
from opmux_cutile.launching import TileKernel, naming_others, recording
from opmux_jit import Source, choose
from opmux_jit.cache import bundles, entry, keys
from opmux_jit.cache.layers import compile_entry
from opmux_jit.compilers import identity


def prebuild(
    arch: str, points: Sequence[Point], folder: Path, workers: int, tick: Callable[[int, int], None]
) -> Prebuilt:
    """Compile every kernel that the calls would launch.

    Args:
        arch: what to compile for.
        points: the calls.
        folder: this backend's in the bundle; entries lie beside it.
        workers: threads that wait for compilers, which are processes.
        tick: told the number of finished and of all kernels.
    """
    failures: list[str] = []
    wanted: dict[str, Source] = {}
    for kernel in _kernels(arch, points, failures):
        source = kernel.source(arch)
        wanted[keys.source_key(source)] = source
    place = folder.parent / bundles.ENTRIES
    made_with: dict[str, str] = {}
    built = 0
    with ThreadPoolExecutor(workers) as pool:
        for done, (compiler, problem) in enumerate(pool.map(partial(compile_into, place), wanted.values()), 1):
            if problem:
                failures.append(problem)
            else:
                built += 1
                made_with["cutile"] = compiler
            tick(done, len(wanted))
    return Prebuilt(built, failures, made_with)


def launched_by(taker: Taker) -> list[TileKernel]:
    """The kernels that a call would launch: its target is called on tensors without memory, and nothing is launched."""
    with recording() as launches:
        taker.run()
    return [kernel for kernel, *_ in launches]


def kernels_of(taker: Taker) -> list[TileKernel]:
    """The kernels that a call would launch on a GPU with any number of multiprocessors, and with longer caches too."""
    with naming_others() as others:
        launched = launched_by(taker)
    return list(dict.fromkeys((*launched, *others)))


def takers_of(op: Any, *tensors: Any, arch: str, **options: Any) -> Iterator[Taker]:
    """Every implementation of this backend that takes a call; last those that are taken by their own name alone."""
    yield from takers(op, *tensors, arch=arch, backend=BACKEND, **options)
    for record in op.op.implementations:
        if record.backend == BACKEND and record.priority == UNPROVED:
            yield from takers(op, *tensors, arch=arch, backend=record.full_name, **options)


def _kernels(arch: str, points: Sequence[Point], failures: list[str]) -> Iterator[TileKernel]:
    ops = registered_ops()
    for point in points:
        for taker in takers_of(ops[point.op], *point.tensors().values(), arch=arch, **point.options):
            try:
                yield from kernels_of(taker)
            except Exception as error:  # one call's failure must not hide the others
                failures.append(f"{point.key} {BACKEND}: {type(error).__name__}: {error}")


def compile_into(place: Path, wanted: Source) -> tuple[str, str]:
    """Compile one kernel into a folder of entries; returns the compiler's version, and what is wrong with the code."""
    try:
        compiler = choose(wanted)
        name = keys.entry_key(keys.source_key(wanted), identity(compiler))
        with tempfile.TemporaryDirectory() as folder:
            made = checked(compile_entry(wanted, compiler, name, Path(folder)))
        (place / name).mkdir(parents=True, exist_ok=True)
        entry.write(place / name, made)
    except (BuildFailed, OSError) as error:
        return "", f"{wanted.name} for {wanted.arch}: {error}"
    return compiler.version, ""
