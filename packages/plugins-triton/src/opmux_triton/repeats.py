"""Keeps the launches of a call for the next call like it, where only the addresses differ.

What a target does on the host (kernels, grids, constants, strides) follows from its config, its options and its
tensors' shapes, strides and dtypes. A target puts the first two into a key, and its launches are noted when the key
comes the second time; from then on `repeated` makes them again with other addresses, if a guard finds that the tensors
match. Calls that come once pay next to nothing.

Launches are kept only if their tensors are the call's own or `scratch`, all at addresses that are multiples of 16, on
which compiled kernels are specialised. Any other call is launched in the ordinary way.
"""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import _C, Tensor
from triton.runtime.jit import TensorWrapper

from opmux.plugin import make_guard
from opmux_triton.interpreter import INTERPRETED
from opmux_triton.launch import Handle, Made, Notes, noting, watched
from opmux_triton.native_launches import native_launches
from opmux_triton.places import Places, from_offset
from opmux_triton.tensor_maps import Launcher, Maps, launcher_of, layouts_of

_MOST = 2048
"""Bounds the table, however many shapes a process sees."""

_FEW = 4
"""Calls kept under one key, of other strides or dtypes, or of other sizes than the key tells apart."""

_MOST_REPLACED = 16
"""After this many replacements under a key, stop noting: forms that alternate would be noted at every call."""

_repeats: dict[Hashable, tuple["Repeat", ...]] = {}
"""Empty if the key came once."""

_replaced: dict[Hashable, int] = {}
"""How often a call replaced another one under a key."""


def repeated(key: Hashable, given: Sequence[Tensor], results: Sequence[Tensor] = ()) -> bool:
    """Make the launches kept for such tensors; returns False, without launching, if none match.

    Args:
        key: what the launches depend on apart from shapes, strides and dtypes: the target, the config by identity,
            options, which tensors there are; and the shapes that change from call to call, so that few share one key.
        given: the tensors of the call.
        results: the tensors it makes, whose shapes and strides follow from the others. One that the caller may have
            given is among the others, or its dtype and strides are in the key.
    """
    for found in _repeats.get(key, ()):
        if found.same(*given):
            break
    else:
        return False
    if not found.steps or watched():
        return False
    if found.native is not None:
        return found.native(*given, *results, *found.scratch())
    addresses = []
    for tensor in (*given, *results):
        address = tensor.data_ptr()
        if address & 15:
            return False
        addresses.append(address)
    if found.device == _C._cuda_getDevice():
        found.launch(given, results, addresses)
    else:
        with torch.cuda.device(found.device):
            found.launch(given, results, addresses)
    return True


@contextmanager
def kept(key: Hashable, given: Sequence[Tensor], results: Sequence[Tensor], config: Any) -> Iterator[None]:
    """Note the launches made in this context, to be `repeated`; apart from them it may only take `scratch`.

    Args:
        key, given, results: as `repeated` was given them.
        config: the object that the key holds by identity.
    """
    if INTERPRETED or watched() or noting.notes is not None:
        yield
        return
    kept_before = _repeats.get(key)
    if kept_before is None:
        if len(_repeats) >= _MOST:
            _repeats.clear()
            _replaced.clear()
        _repeats[key] = ()
        yield
        return
    every = (*given, *results)
    # A tensor given twice could not be told apart from two tensors at the next call.
    alone = len({id(t) for t in every}) == len(every) and not any(t.data_ptr() & 15 for t in every)
    full = len(kept_before) == _FEW
    if not alone or any(one.same(*given) for one in kept_before) or (full and _replaced.get(key, 0) >= _MOST_REPLACED):
        yield
        return
    noting.notes = notes = Notes()
    try:
        yield
        if notes.whole:
            _repeats[key] = (*kept_before[1 - _FEW :], Repeat(notes, given, results, config))
            _replaced[key] = _replaced.get(key, 0) + full
    finally:
        noting.notes = None


def forget() -> None:
    """Keep no launches any more: for benchmarks that go through many configs."""
    _repeats.clear()
    _replaced.clear()


def scratch(shape: Sequence[int], like: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Memory between launches, unwritten, on a tensor's device; launches may be given views of it too.

    Args:
        shape: its shape.
        like: the tensor.
        dtype: of 4 bytes.
    """
    made = like.new_empty(shape, dtype=dtype)
    if noting.notes is not None:
        noting.notes.scratch.append(made)
    return made


class _Step(NamedTuple):
    """One launch: the grid, the values with their constants, and which of them are addresses or tensor maps.

    Attributes:
        pointers: place among the values, number of the tensor, bytes from its beginning.
        maps: the same, and the maps.
    """

    launcher: Launcher
    x: int
    y: int
    z: int
    fixed: list[Any]
    pointers: tuple[tuple[int, int, int], ...]
    maps: tuple[tuple[int, int, int, Maps], ...]


def _step(made: Made, where: Places) -> _Step | None:
    """A launch whose tensors are named by their places; None if it has others."""
    handle = made.handle
    own = launcher_of(handle)
    layouts = iter(layouts_of(handle) if own is not None else ())
    fixed: list[Any] = []
    pointers, maps = [], []
    for place, value in enumerate(made.arguments):
        if value is None or isinstance(value, (int, float)):
            fixed.append(value)
            continue
        found = where.of(getattr(value, "base", value))
        if found is None:
            return None
        fixed.append(None)
        if isinstance(value, (Tensor, TensorWrapper)):
            pointers.append((place, *found))
        elif (layout := next(layouts, None)) is None:
            return None
        else:
            maps.append((place, *found, Maps(value, layout)))
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
        same: whether tensors match the call's; a native check, at a fifth of the cost of a key.
        config: kept alive, because the key holds its identity.
        handles: kept alive, because a kernel is unloaded with its last reference.
        steps: the launches; empty if they cannot be made again.
        native: makes them all in one call of opmux-jit's launcher; None if they go through Triton's.
    """

    def __init__(self, notes: Notes, given: Sequence[Tensor], results: Sequence[Tensor], config: Any) -> None:
        self.same = make_guard(given, exact=True)
        self.config = config
        self.handles = [one.handle for one in notes.made]
        self.steps: list[_Step] = []
        self.device = notes.made[0].device if notes.made else -1
        # All scratch is one allocation: where each part begins, and its number of values. No tensor is kept, not even
        # one of a single value: it may be in the pool of a CUDA graph, which counts what is alive there.
        self._places: list[int] = []
        self._size = 0
        for tensor in notes.scratch:
            self._places.append(4 * self._size)
            self._size += -(-tensor.numel() // 128) * 128  # all of 4 bytes
        self._where = given[0].device
        where = Places((*given, *results), notes.scratch, self._places)
        steps = [_step(one, where) for one in notes.made]
        self.native = None
        if None not in steps:
            self.steps = [step for step in steps if step is not None]
            self.native = native_launches(notes.made, (*given, *results), notes.scratch, self._places)

    def scratch(self) -> tuple[Tensor, ...]:
        """The scratch memory of one call; none where the launches need none."""
        if not self._size:
            return ()
        return (torch.empty(self._size, dtype=torch.float32, device=self._where),)

    def launch(self, given: Sequence[Tensor], results: Sequence[Tensor], addresses: list[int]) -> None:
        """Launch all, with other tensors at these addresses, on the current device."""
        tensors = (*given, *results, *self.scratch())
        addresses += [tensor.data_ptr() for tensor in tensors[len(addresses) :]]
        stream = _C._cuda_getCurrentRawStream(self.device)
        for launcher, x, y, z, fixed, pointers, maps in self.steps:
            values = fixed.copy()
            for place, which, offset in pointers:
                values[place] = addresses[which] + offset
            for place, which, offset, of in maps:  # from the last one on, so that earlier places do not move
                address = addresses[which] + offset
                found = of.get(address)
                if found is None:
                    found = of.make(from_offset(tensors[which], offset), address)
                values[place : place + 1] = found
            launcher(x, y, z, stream, values)
