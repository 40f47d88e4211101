"""Kept launches through the native launcher of opmux-jit, where that is installed: one call for all of a call's.

It is given what Triton's own launcher would hand to the driver. That is not public in Triton, so it is done only with
the versions whose source was read (see `opmux_triton.tensor_maps`), and only for kernels whose parameters are all of a
kind that is known; `native_launches` returns None for the others, and they go through Triton's launcher.
"""

import ctypes
import functools
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

from torch import _C, Tensor
from triton.runtime.jit import TensorWrapper

from opmux.plugin import BackendFault
from opmux_triton.launch import Made
from opmux_triton.places import Places, from_offset
from opmux_triton.tensor_maps import Maps, launcher_of, layouts_of

try:
    from opmux_jit import launching
    from opmux_jit.launching import device, is_built, launcher
except ImportError:  # it, or something that it depends on; or it is older than what is asked of it
    INSTALLED = False
else:
    INSTALLED = launching.API_VERSION == 1

KINDS = {
    "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u8": "B", "u16": "H", "u32": "I", "u64": "Q", "fp32": "f",
    "f32": "f", "fp64": "d",
}  # fmt: skip
"""From Triton's types of parameters to the launcher's letters."""

VARIABLE = "OPMUX_NATIVE_LAUNCH"
MAP_BYTES = 128
WARP = 32

Launches = Callable[..., bool]
"""Called with the tensors of a call (and its scratch memory, if it has any); False where an address is not aligned."""

logger = logging.getLogger("opmux.triton")


def native_launches(
    made: Sequence[Made], tensors: Sequence[Tensor], scratch: Sequence[Tensor], places: Sequence[int]
) -> Launches | None:
    """The launches of a call as one native call, or None where they must go through Triton's launcher.

    Args:
        made: the launches.
        tensors: the call's tensors, given and made; a later call gives others like them.
        scratch: its scratch memory, which is one tensor at a later call, given after the others.
        places: where each part of the scratch memory begins in it, in bytes.
    """
    if not made or not _usable():
        return None
    index = made[0].device
    if any(launcher_of(one.handle) is None or one.device != index for one in made):
        return None
    where = Places(tensors, scratch, places)
    try:
        return _launches([_step(one, where) for one in made], len(tensors) + bool(scratch), index)
    except _Unknown:
        return None
    except (BackendFault, RuntimeError) as problem:  # no driver or launcher for this machine, or the driver refuses
        _say_once(str(problem))
        return None


class _Unknown(Exception):
    """A parameter is of a kind that is left to Triton."""


@functools.cache
def _usable() -> bool:
    """Whether the launcher is there, built, and not switched off: no call waits for a C++ compiler."""
    if os.environ.get(VARIABLE, "1").strip().lower() not in ("1", "true", "on", "yes"):
        return False
    if INSTALLED and not is_built():
        logger.info("opmux-jit's launcher is not built, Triton's is used: python -m opmux_jit.native builds it")
        return False
    return INSTALLED


@functools.cache
def _say_once(problem: str) -> None:
    logger.warning("kernels are launched through Triton, not through opmux-jit: %s", problem)


def _launches(steps: Sequence[tuple[Any, ...]], tensors: int, index: int) -> Launches:
    where, native = device(index, "nvidia"), launcher()  # in this order: the first names what is wrong with the second
    prepared = []
    for one, signature, values, addresses, maps in steps:
        handle, run = one.handle, one.handle.run
        warps, blocks, shared = handle.packed[:3]
        if blocks != 1:
            raise _Unknown
        shape = native.shape(
            where.driver, index, handle.function, handle.compiled.metadata.name, signature, (warps * WARP, 1, 1),
            shared, (1, 1, 1), False, bool(run.launch_cooperative_grid), bool(run.launch_pdl), handle.compiled,
        )  # fmt: skip
        prepared.append((shape, (*one.grid, 1, 1)[:3], tuple(values), addresses, maps))
    found: Launches = native.launches(prepared, tensors, _C._cuda_getCurrentRawStream, index)
    return found


def _step(one: Made, where: Places) -> tuple[Any, ...]:
    """A launch's signature, values, and which of them are addresses and maps, of which tensors."""
    layouts = iter(layouts_of(one.handle))
    signature = ""
    values: list[Any] = []
    addresses: list[tuple[int, int, int]] = []
    maps: list[tuple[int, int, Callable[[Tensor], bytes]]] = []
    source = getattr(one.handle.compiled, "src", None)
    if source is None:
        raise _Unknown
    types = source.signature.values()
    for kind, value in zip(types, (*one.arguments, *one.handle.constants), strict=True):
        if kind == "constexpr":
            continue
        value = value.base if isinstance(value, TensorWrapper) else value
        if isinstance(value, Tensor):
            addresses.append((len(values), *_place(where, value)))
            signature += "p"
            values.append(...)
        elif kind.startswith("tensordesc"):
            layout = next(layouts, None)
            tensor, offset = _place(where, value.base)
            if layout is None:
                raise _Unknown
            maps.append((len(values), tensor, functools.partial(_map, Maps(value, layout), offset)))
            dims = len(value.shape)
            signature += "m" + "i" * dims + "q" * dims
            values += [..., *value.shape, *value.strides]
        elif kind in KINDS:
            signature += KINDS[kind]
            values.append(value)
        else:
            raise _Unknown
    # Triton's two pointers to scratch memory, which kernels that are kept do not have.
    return one, signature + "pp", [*values, None, None], addresses, maps


def _place(where: Places, tensor: Tensor) -> tuple[int, int]:
    found = where.of(tensor)
    if found is None:
        raise _Unknown
    return found


def _map(maps: Maps, offset: int, tensor: Tensor) -> bytes:
    return _bytes_of(maps.make(from_offset(tensor, offset), tensor.data_ptr() + offset)[0])


def _bytes_of(made: Any) -> bytes:
    """The bytes of a tensor map of Triton's: the end of its object."""
    return ctypes.string_at(id(made) + type(made).__basicsize__ - MAP_BYTES, MAP_BYTES)
