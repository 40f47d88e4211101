"""Launches that are played on the CPU, where the backend would ask the driver.

    with on("sm_90"):
        opmux.rms_norm(torch.ones(2, 64), torch.ones(64), backend="cutile")

Every argument is held to what the kernel was compiled with: dtype, constant sizes and strides, alignment, 32 bits.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import product
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from opmux.plugin import cpu_plays
from opmux_cutile import launching
from opmux_cutile.parameters import Array, Constant, Parameter, Scalar
from played import language


@contextmanager
def on(arch: str) -> Iterator[None]:
    """Let calls with tensors on the CPU be planned for an arch, and play what they launch."""
    with cpu_plays(arch), mock.patch.object(launching._here, "recorded", _Player()):
        yield


class _Player(list[launching.Launch]):
    """Takes the place of the list in which launches are noted."""

    def append(self, launch: launching.Launch) -> None:
        play(*launch)


def play(kernel: launching.TileKernel, grid: tuple[int, int, int], given: tuple[Any, ...]) -> None:
    """Run all blocks of a launch, one after the other."""
    if min(grid) < 1 or grid[0] > 2**31 - 1 or max(grid[1:]) > 65535:
        raise language.Misuse(f"a grid of {grid}")
    arguments = list(_arguments(kernel.parameters, given))
    function = functions(launching.text_of(kernel.module))[kernel.name]
    with mock.patch.object(language.Block, "grid", grid):
        for z, y, x in product(*map(range, reversed(grid))):
            with mock.patch.object(language.Block, "place", (x, y, z)):
                function(*arguments)


@cache
def functions(text: str) -> dict[str, Callable[..., None]]:
    """The functions of a module of kernels."""
    above, tile = ModuleType("cuda"), language.module()
    above.tile = tile  # type: ignore[attr-defined]
    found: dict[str, Any] = {"min": _of_two(min), "max": _of_two(max)}
    with mock.patch.dict(sys.modules, {"cuda": above, "cuda.tile": tile}):
        exec(compile(text, "<kernels>", "exec"), found)
    return found


def _of_two(function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """Python's `min` or `max` as the language has it: of two numbers."""

    def call(a: Any, b: Any) -> Any:
        return function(a, b)

    return call


def _arguments(parameters: tuple[Parameter, ...], given: tuple[Any, ...]) -> Iterator[Any]:
    rest, written = list(given), {}
    for parameter in parameters:
        if isinstance(parameter, Constant):
            yield parameter.value
        elif isinstance(parameter, Scalar):
            yield _number(parameter.dtype, rest.pop(0))
        else:
            tensor, rank = rest.pop(0), len(parameter.shape)
            sizes, steps = rest[:rank], rest[rank : 2 * rank]
            del rest[: 2 * rank]
            if (tuple(tensor.shape), tensor.stride()) != (tuple(sizes), tuple(steps)):
                raise language.Misuse(f"sizes {sizes} and strides {steps} of a tensor with {tensor.shape}")
            _check(parameter, tensor)
            # What overlaps exactly, as in place, is one array.
            key = tensor.data_ptr(), tuple(tensor.shape), tensor.stride()
            if key not in written:
                written[key] = torch.full(tensor.shape, language.NOBODY, dtype=torch.int64)
            given_one = str(tensor.dtype) == f"torch.{parameter.dtype}"
            yield (language.Array if given_one else language.Unused)(tensor, written[key])
    if rest:
        raise language.Misuse(f"arguments that the kernel has no parameters for: {rest}")


def _number(dtype: str, value: float) -> float:
    """A number as the kernel gets it."""
    if dtype == "int32":
        if not isinstance(value, int) or not -(2**31) <= value < 2**31:
            raise language.Misuse(f"{value!r} is no number of 32 bits")
        return value
    return torch.tensor(value, dtype=getattr(torch, dtype)).item()


def _check(stated: Array, tensor: Tensor) -> None:
    """Raise where a tensor is not what its kernel was compiled for."""
    said = stated.stated()
    if tensor.dim() != len(stated.shape):
        raise language.Misuse(f"{tuple(tensor.shape)} for {stated}")
    for kind, constants, found in (("size", stated.shape, tensor.shape), ("stride", stated.stride, tensor.stride())):
        for constant, number in zip(constants, found, strict=True):
            if constant is not None and constant != number:
                raise language.Misuse(f"a {kind} of {number}, compiled for {constant}")
            if not 0 <= number < 2**31:
                raise language.Misuse(f"a {kind} of {number}")
    for constant, step in zip(stated.stride, tensor.stride(), strict=True):
        if constant is None and step % said["divides"]:
            raise language.Misuse(f"a stride of {step}, compiled for multiples of {said['divides']}")
    if tensor.data_ptr() % said["alignment"]:
        raise language.Misuse(f"an address that is no multiple of {said['alignment']}")
