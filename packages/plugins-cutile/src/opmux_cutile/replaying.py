"""Keeps the launches of a call for the next call like it, where only the addresses differ.

What a target does on the host follows from its config, its options, and its tensors' shapes, strides and dtypes. Its
launches are noted when a key of these comes the second time, and from then on opmux-jit makes them again natively. Only
launches on the call's own tensors and results are kept, all at multiples of 16 bytes, as kernels are compiled for them.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor

from opmux.plugin import make_guard
from opmux_cutile import launching
from opmux_jit.launching.kernel import Address

MOST_KEYS = 2048
MOST_CALLS = 4
"""Kept under one key, of other shapes, strides or dtypes."""
MOST_REPLACED = 16
"""After which nothing more is noted under a key: shapes that never come back would be noted at every call."""


class Call(NamedTuple):
    """A call that can be made again.

    Attributes:
        same: whether tensors are like those of the call.
        config: kept alive, for the key has its identity.
        results: the shape, strides and dtype of each tensor that is made.
        device: of them.
        launches: each launches natively, given the call's tensors and results.
        packed: whether the target returns a tuple; None where it returns nothing.
    """

    same: Callable[..., bool]
    config: Any
    results: tuple[tuple[torch.Size, tuple[int, ...], torch.dtype], ...]
    device: torch.device
    launches: tuple[Callable[..., bool], ...]
    packed: bool | None


_kept: dict[tuple[Any, ...], tuple[Call, ...]] = {}
"""Empty where a key came once."""
_replaced: dict[tuple[Any, ...], int] = {}


def kept(target: Callable[..., Any]) -> Callable[..., Any]:
    """A target whose launches are kept."""
    name = f"{target.__module__}:{target.__name__}"

    @wraps(target)
    def call(*tensors: Tensor | None, config: Any, **options: Any) -> Any:
        given = [tensor for tensor in tensors if tensor is not None]
        absent = () if len(given) == len(tensors) else tuple(tensor is None for tensor in tensors)
        key = (name, id(config), absent, *options.values())
        for found in _kept.get(key, ()):
            if found.same(*given):
                results = [torch.empty_strided(*r[:2], dtype=r[2], device=found.device) for r in found.results]
                for launch in found.launches:
                    if not launch(*given, *results):  # an address is no multiple of 16, which the first one tells
                        break
                else:
                    return None if found.packed is None else tuple(results) if found.packed else results[0]
                break
        return _made(target, key, tensors, given, config, options)

    return call


def _made(
    target: Callable[..., Any], key: tuple[Any, ...], tensors: tuple[Tensor | None, ...], given: list[Tensor],
    config: Any, options: dict[str, Any],
) -> Any:  # fmt: skip
    """Make the call in the ordinary way, and keep it where its key came before."""
    before = _kept.get(key)
    full = before is not None and len(before) == MOST_CALLS
    if before is None or not _on_gpu(given[0]) or (full and _replaced.get(key, 0) >= MOST_REPLACED):
        if before is None:
            if len(_kept) >= MOST_KEYS:
                _kept.clear()
                _replaced.clear()
            _kept[key] = ()
        return target(*tensors, config=config, **options)
    with launching.noting() as noted:
        answer = target(*tensors, config=config, **options)
    results = () if answer is None else answer if isinstance(answer, tuple) else (answer,)
    launches = _launches(noted, (*given, *results))
    if launches and all(_whole(result) for result in results):
        made = tuple((result.shape, result.stride(), result.dtype) for result in results)
        packed = None if answer is None else isinstance(answer, tuple)
        call = Call(make_guard(given, exact=True), config, made, given[0].device, launches, packed)
        _kept[key] = (*before[-MOST_CALLS + 1 :], call)
        _replaced[key] = _replaced.get(key, 0) + full
    return answer


def _on_gpu(tensor: Tensor) -> bool:
    return tensor.get_device() >= 0


def _whole(result: Tensor) -> bool:
    """Whether a result has memory of its own, all of which the kernel writes."""
    return result.numel() > 0 and result.untyped_storage().nbytes() == result.numel() * result.element_size()


def _launches(noted: Sequence[launching.Launch], tensors: Sequence[Tensor]) -> tuple[Callable[..., bool], ...]:
    """What makes noted launches again, given the tensors of a call; nothing where they use others."""
    addresses = [tensor.data_ptr() for tensor in tensors]
    if len(set(addresses)) < len(addresses) or any(address % 16 for address in addresses):
        return ()
    index, found = tensors[0].get_device(), []
    for kernel, grid, arguments in noted:
        places = [_place(a, tensors, addresses) if isinstance(a, Tensor) else a for a in arguments]
        if None in places:
            return ()
        found.append(kernel.repeating(index, grid, places, len(tensors)))
    return tuple(found)


def _place(tensor: Tensor, tensors: Sequence[Tensor], addresses: list[int]) -> Address | None:
    """Which of the tensors one begins in: as another begins, or, for a part of one, within it."""
    address = tensor.data_ptr()
    if address in addresses:
        return Address(addresses.index(address))
    within = [
        place for place, whole in enumerate(tensors) if addresses[place] < address < addresses[place] + _bytes_of(whole)
    ]
    # Where tensors interleave, as halves of one do, their next call may have them elsewhere.
    return Address(within[0], address - addresses[within[0]]) if len(within) == 1 else None


def _bytes_of(whole: Tensor) -> int:
    """From its first element to the end of its last one."""
    span = sum((size - 1) * step for size, step in zip(whole.shape, whole.stride(), strict=True)) + 1
    return span * whole.element_size()


def forget() -> None:
    """Keep nothing any more."""
    _kept.clear()
    _replaced.clear()
