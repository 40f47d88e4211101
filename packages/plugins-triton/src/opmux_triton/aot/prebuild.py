"""Compiles the Triton kernels of recorded calls ahead, into a folder that `opmux_triton.bundled` reads."""

import contextlib
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import triton

from opmux.plugin import Prebuilt, registered_ops, takers
from opmux.shapes import Point
from opmux_triton.aot.build import build_launcher, compile_launch
from opmux_triton.bundled import LAUNCHER
from opmux_triton.launch import Launch, recording

BACKEND = "triton"
KEPT = (".json", ".cubin", ".hsaco")
"""What a launch needs of a kernel in Triton's cache; the intermediate texts stay out."""

_launches: list[Launch] = []
"""Set before the workers fork: a kernel and its arguments cannot be sent to them."""


def prebuild(
    arch: str, points: Sequence[Point], folder: Path, workers: int, tick: Callable[[int, int], None]
) -> Prebuilt:
    """Compile every kernel that this backend's implementations launch for the calls.

    Args:
        arch: ``sm_90``, ``gfx942``, ...
        points: the calls.
        folder: where to; kernels that it has already are kept.
        workers: processes that compile.
        tick: told the number of finished and of all kernels.
    """
    _launches[:], failures = _launches_of(arch, points)
    cache = folder / "cache"
    with ProcessPoolExecutor(workers, mp_context=get_context("fork"), initializer=_use, initargs=(str(cache),)) as pool:
        for done, problem in enumerate(pool.map(_compile, [(arch, i) for i in range(len(_launches))]), 1):
            failures += [problem] if problem else []
            tick(done, len(_launches))
    kernels = _collect(cache, folder)
    return Prebuilt(kernels, failures, {"triton": triton.__version__})


def _launches_of(arch: str, points: Sequence[Point]) -> tuple[list[Launch], list[str]]:
    """The launches of the calls, each once as far as the compiler can tell, and what failed."""
    found: dict[str, Launch] = {}
    failures: list[str] = []
    ops = registered_ops()
    for point in points:
        for taker in takers(ops[point.op], *point.tensors().values(), arch=arch, **point.options):
            if taker.implementation.backend != BACKEND:
                continue
            try:
                with recording(arch) as recorded:
                    taker.run()
            except Exception as error:  # one call's failure must not hide the others
                failures.append(f"{point.key} {taker.implementation.full_name}: {type(error).__name__}: {error}")
                continue
            for launch in recorded.launches:
                found.setdefault(_identity(launch), launch)
    return list(found.values()), failures


def _identity(launch: Launch) -> str:
    """What Triton specialises on, and more: numbers are told apart that the compiler does not tell apart."""
    values = [
        (str(base.dtype), getattr(a, "block_shape", None)) if hasattr(base := getattr(a, "base", a), "dtype") else a
        for a in launch.arguments
    ]
    return f"{launch.kernel.__module__}.{launch.kernel.__name__} {values} {sorted(launch.meta.items(), key=str)}"


def _use(cache: str) -> None:
    os.environ["TRITON_CACHE_DIR"] = cache


def _compile(place: tuple[str, int]) -> str | None:
    arch, index = place
    launch: Any = _launches[index]
    try:
        compiled, _ = compile_launch(launch, arch)
    except Exception as error:  # the compiler may raise anything, and the other kernels are built all the same
        return f"{launch.kernel.__name__} for {arch}: {type(error).__name__}: {' '.join(str(error).split())[:400]}"
    with contextlib.suppress(
        Exception
    ):  # where the driver's library or a C compiler lacks, it is compiled where it runs
        build_launcher(compiled)
    return None


def _collect(cache: Path, folder: Path) -> int:
    """Move what launches need out of Triton's cache; returns the number of kernels in the folder."""
    for group in cache.glob("*/__grp__*.json"):
        target = folder / group.parent.name
        target.mkdir(exist_ok=True)
        for path in group.parent.iterdir():
            if path.suffix in KEPT and path.is_file() and not path.name.startswith("__grp__"):
                shutil.move(path, target / path.name)
    for code in cache.glob(f"*/{LAUNCHER}*"):
        target = folder / code.parent.name
        target.mkdir(exist_ok=True)
        shutil.move(code, target / code.name)
    shutil.rmtree(cache, ignore_errors=True)
    return sum(1 for _ in folder.glob("*/*.json"))
