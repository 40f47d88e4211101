"""Calls Triton's launcher from inside, with kept tensor maps for descriptors and without lookups per launch.

``compiled.run(...)`` looks for scratch memory and has the driver make a tensor map of each tensor descriptor, at every
launch. A tensor map holds only an address and a geometry: one that was made for them stays valid whenever they come
again, whatever memory is there by then. So maps are kept.

None of this is public in Triton. It is used only with the versions whose source was read, and if everything is as it
was there; otherwise `launcher_of` returns None, and `run` is called as Triton does.
"""

import importlib
import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import triton

from opmux_triton.launch import Handle

Launcher = Callable[[int, int, int, int, Sequence[Any]], Any]
"""Called with a grid's three sizes, a stream, and the arguments with the constants."""

_DRIVER = "triton.backends.nvidia.driver"
_VERSION = tuple(triton.__version__.split(".")[:2])
_BASE = "iiiKKppOOOOOO"
"""The arguments of a launcher of Triton 3.6 before the kernel's own."""

_MOST = 8192
"""Bounds the maps that are kept: about 4 MB."""

_maps: dict[tuple[int, int], tuple[Any, ...]] = {}
_geometries: dict[Hashable, int] = {}
_numbers = itertools.count()


def launcher_of(handle: Handle) -> Launcher | None:
    """A launcher of a compiled kernel that takes the maps of `Maps` for its descriptors; None if there is none."""
    run = handle.run
    if type(run).__module__ != _DRIVER or type(run).__name__ != "CudaLauncher":
        return None
    try:
        if run.global_scratch_size or run.profile_scratch_size:
            return None
        return _MAKERS[_VERSION](handle)
    except (AttributeError, KeyError, ValueError):
        return None


def _of_3_6(handle: Handle) -> Launcher | None:
    run, function, packed = handle.run, handle.function, handle.packed
    cooperative, dependent, launch = run.launch_cooperative_grid, run.launch_pdl, run.launch
    if importlib.import_module(_DRIVER)._BASE_ARGS_FORMAT != _BASE:
        return None
    if hasattr(launch, "__closure__"):  # the wrapper that makes the maps, around the launcher itself
        launch = launch.__closure__[launch.__code__.co_freevars.index("launcher")].cell_contents

    def launcher(x: int, y: int, z: int, stream: int, values: Sequence[Any]) -> None:
        launch(x, y, z, stream, function, cooperative, dependent, None, None, packed, None, None, None, *values)

    return launcher


def _of_3_9(handle: Handle) -> Launcher | None:
    run, function, packed = handle.run, handle.function, handle.packed
    cooperative, dependent = run.launch_cooperative_grid, run.launch_pdl
    launch, kinds, signature = triton.runtime.driver.active.utils.launch, run.arg_annotations, run.kernel_signature
    if run.gsan_enabled:
        return None

    def launcher(x: int, y: int, z: int, stream: int, values: Sequence[Any]) -> None:
        launch(
            x, y, z, stream, function, cooperative, dependent, packed, None, None, None, None, None, kinds, signature,
            values,
        )  # fmt: skip

    return launcher


_MAKERS = {("3", "6"): _of_3_6, ("3", "9"): _of_3_9}


def layouts_of(handle: Handle) -> Sequence[Any]:
    """The layouts in shared memory that the kernel expects for its descriptors' blocks; empty if it has no maps."""
    found = getattr(handle.compiled.metadata, "tensordesc_meta", None) or ()
    return () if any(layout is None for layout in found) else found


class Maps:
    """The maps of one descriptor: of one geometry, at any address."""

    def __init__(self, descriptor: Any, layout: Any) -> None:
        self._kind, self._layout = type(descriptor), layout
        self._fields = {n: v for n, v in vars(descriptor).items() if n != "base"}
        facts = (self._kind, descriptor.base.dtype, repr(self._fields), repr(layout))
        if len(_geometries) >= _MOST:
            _geometries.clear()
        self._number = _geometries.setdefault(facts, next(_numbers))

    def get(self, address: int) -> tuple[Any, ...] | None:
        """What a launcher takes for the descriptor of a tensor at this address, if it was made before."""
        return _maps.get((self._number, address))

    def make(self, tensor: Any, address: int) -> tuple[Any, ...]:
        """What a launcher takes for the descriptor of a tensor: the map, its shape, its strides."""
        descriptor = self._kind(tensor, **self._fields)
        nothing = (None,) if _VERSION == ("3", "9") else ()
        made = tuple(importlib.import_module(_DRIVER).make_tensordesc_arg(descriptor, self._layout, *nothing))
        if len(_maps) >= _MOST:
            _maps.clear()
        _maps[self._number, address] = made
        return made
