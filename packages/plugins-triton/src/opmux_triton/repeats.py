"""Launches of a call kept, for the next call like it: everything is settled but the addresses.

What a target does on the host follows from its config, its options and its tensors' shapes, strides and dtypes: which
kernels, grids, constants, strides. A target names these in a key, and has its launches noted when the key comes the
second time; from then on `repeated` launches them with other addresses. Calls that come once pay next to nothing.

Kept is only what can be said so: launches whose tensors are the call's own or `scratch`, all at addresses that are
multiples of 16, which compiled kernels tell apart. Another call goes the ordinary way.
"""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import _C, Tensor

from opmux_triton.launch import INTERPRETED, Handle, Made, Notes, noting, watched
from opmux_triton.tensor_maps import Launcher, Maps, launcher_of, layouts_of

_MOST = 2048
"""Bounds the table, whatever shapes a process meets."""

_repeats: dict[Hashable, "Repeat | None"] = {}
"""None: the key came once."""


def key_of(name: str, config: Any, tensors: Sequence[Tensor | None], *options: Hashable) -> Hashable:
    """What a call's launches depend on; the config by identity, which a `Repeat` keeps alive."""
    facts = [None if t is None else (t.shape, t.stride(), t.dtype) for t in tensors]
    first = tensors[0]
    assert first is not None
    return (name, id(config), first.get_device(), *options, *facts)


def repeated(key: Hashable, tensors: Sequence[Tensor | None]) -> bool:
    """Launch what was kept under a key, with these tensors; False, and nothing is done, where nothing fits."""
    found = _repeats.get(key)
    if found is None or not found.steps or watched():
        return False
    addresses = []
    for tensor in tensors:
        if tensor is not None:
            address = tensor.data_ptr()
            if address & 15:
                return False
            addresses.append(address)
    if found.device == _C._cuda_getDevice():
        found.launch(tensors, addresses)
    else:
        with torch.cuda.device(found.device):
            found.launch(tensors, addresses)
    return True


@contextmanager
def kept(key: Hashable, tensors: Sequence[Tensor | None], config: Any) -> Iterator[None]:
    """Note the launches made inside, to be `repeated`: nothing else may happen there, but taking `scratch`.

    Args:
        key: what they depend on, from `key_of`.
        tensors: what they read and write, results too, in the order that `repeated` is given them in.
        config: what the key knows by identity.
    """
    if INTERPRETED or watched() or noting.notes is not None or _repeats.get(key) is not None:
        yield
        return
    if key not in _repeats:
        if len(_repeats) >= _MOST:
            _repeats.clear()
        _repeats[key] = None
        yield
        return
    noting.notes = notes = Notes()
    try:
        yield
        _repeats[key] = Repeat(notes, tensors, config)
    finally:
        noting.notes = None


def scratch(shape: Sequence[int], like: Tensor) -> Tensor:
    """Memory for float32 values between launches, on a tensor's device."""
    made = like.new_empty(shape, dtype=torch.float32)
    if noting.notes is not None:
        noting.notes.scratch.append(made)
    return made


class _Step(NamedTuple):
    """One launch: the grid, the values with their constants, and which of them are addresses or tensor maps."""

    launcher: Launcher
    x: int
    y: int
    z: int
    fixed: list[Any]
    pointers: tuple[tuple[int, int], ...]
    maps: tuple[tuple[int, int, Maps], ...]


def _step(made: Made, tensors: Sequence[Tensor]) -> _Step | None:
    """A launch with its tensors told by their places among these; None where it has others."""
    handle = made.handle
    own = launcher_of(handle)
    layouts = iter(layouts_of(handle) if own is not None else ())
    places = {id(tensor): place for place, tensor in enumerate(tensors)}
    fixed: list[Any] = []
    pointers, maps = [], []
    for place, value in enumerate(made.arguments):
        plain = value is None or isinstance(value, (int, float))
        which = -1 if plain else places.get(id(getattr(value, "base", value)))
        if which is None:
            return None
        if plain:
            fixed.append(value)
            continue
        fixed.append(None)
        if isinstance(value, Tensor):
            pointers.append((place, which))
        elif (layout := next(layouts, None)) is None:
            return None
        else:
            maps.append((place, which, Maps(value, layout)))
    x, y, z = (*made.grid, 1, 1)[:3]
    launcher = own if own is not None else _public(handle)
    return _Step(launcher, x, y, z, [*fixed, *handle.constants], tuple(pointers), tuple(reversed(maps)))


def _public(handle: Handle) -> Launcher:
    _, run, function, packed, _ = handle

    def launcher(x: int, y: int, z: int, stream: int, values: Sequence[Any]) -> None:
        run(x, y, z, stream, function, packed, None, None, None, *values)

    return launcher


class Repeat:
    """The launches of one call.

    Attributes:
        config: kept alive, for the key holds its identity.
        steps: none where they cannot be made again.
    """

    def __init__(self, notes: Notes, tensors: Sequence[Tensor | None], config: Any) -> None:
        self.config = config
        self.steps: list[_Step] = []
        self.device = notes.made[0].device if notes.made else -1
        self._scratch = [tensor.numel() for tensor in notes.scratch]
        every = [tensor for tensor in tensors if tensor is not None] + notes.scratch
        # One tensor given twice would be taken for one of the two at the next call.
        if len({id(t) for t in every}) < len(every) or any(t.data_ptr() & 15 for t in every):
            return
        steps = [_step(one, every) for one in notes.made]
        if None not in steps:
            self.steps = [step for step in steps if step is not None]

    def launch(self, tensors: Sequence[Tensor | None], addresses: list[int]) -> None:
        """Launch all, with other tensors at these addresses, on the current device."""
        between = []
        for size in self._scratch:
            made = tensors[0].new_empty(size, dtype=torch.float32)  # type: ignore[union-attr]
            between.append(made)
            addresses.append(made.data_ptr())
        stream = _C._cuda_getCurrentRawStream(self.device)
        for launcher, x, y, z, fixed, pointers, maps in self.steps:
            values = fixed.copy()
            for place, which in pointers:
                values[place] = addresses[which]
            for place, which, of in maps:  # from the last one on, so that places stay what they are
                address = addresses[which]
                found = of.get(address)
                if found is None:
                    every = [tensor for tensor in tensors if tensor is not None] + between
                    found = of.make(every[which], address)
                values[place : place + 1] = found
            launcher(x, y, z, stream, values)
