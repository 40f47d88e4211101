"""The kernels that a wheel has for an arch, and how they are compiled into it."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, repeat
from pathlib import Path

from torch import Tensor

from opmux.plugin import registered_ops
from opmux_cutile.archs import UNPROVED
from opmux_cutile.launching import TileKernel
from opmux_cutile.prebuilding import kernels_of, takers_of
from opmux_cutile.shipping.calls import Call, calls
from opmux_jit.cache import shipped
from opmux_jit.cache.keys import source_key

ARCHS = ("sm_90", "sm_100", "sm_120")
"""That the wheel has cubins for."""
MOST_COLUMNS = 128
"""Of heads, in kernels of records that are taken by their own names alone."""


def kernels(arch: str, more: Iterable[Call] | None = None) -> dict[str, TileKernel]:
    """By the key of its source, each kernel that calls of models launch and a wheel has, in the heuristics' configs.

    With more calls, of all calls of models and of these.
    """
    ops = registered_ops()
    found: dict[str, TileKernel] = {}
    for op, tensors, options in chain(calls(), more or ()):
        for taker in takers_of(ops[op], *tensors, arch=arch, **options):
            if more is None and taker.implementation.priority == UNPROVED and not _fits_a_wheel(tensors):
                continue
            for kernel in kernels_of(taker):
                found.setdefault(source_key(kernel.source(arch)), kernel)
    return found


def _fits_a_wheel(tensors: tuple[Tensor | None, ...]) -> bool:
    """Of records that are taken by their own names alone: neither wide heads nor codes, for which there is no room."""
    return all(x is None or (x.dtype.itemsize > 1 and x.shape[-1] <= MOST_COLUMNS) for x in tensors[:3])


def build(folder: Path, archs: Iterable[str], workers: int) -> Iterator[str]:
    """Compile the kernels of some archs into a folder, or take them from the cache; says what it did, a line at a time.

    Raises:
        BuildFailed: a kernel cannot be compiled, or spills registers.
    """
    entries = []
    with ThreadPoolExecutor(workers) as pool:
        for arch in archs:
            wanted = list(kernels(arch).values())
            entries += pool.map(TileKernel.code, wanted, repeat(arch))
            yield f"{arch}: {len(wanted)} kernels"
    shipped.write(folder, entries)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    yield f"{size / 1e6:.2f} MB in {folder}"
