"""Variants for the tests of sweeps, in a module that spawned processes can import."""

import os
import time
from typing import Any

import torch
from torch import Tensor

from opmux.bench.data import Arguments, Data
from opmux.bench.shapes import Shape

SHAPE = Shape("2 rows of 8", 8, 8, 1, 1, 8, 1, 2, 2)


def make(data: Data, shape: Shape) -> Arguments:
    """A tensor of tokens by hidden."""
    return Arguments((data.normal(shape.tokens, shape.hidden),), {"by": 2.0})


def scaled(x: Tensor, *, by: float) -> Tensor:
    """The reference."""
    return x * by


def summed(x: Tensor, *, by: float) -> Tensor:
    """A right variant."""
    return x + x * (by - 1)


def slow(x: Tensor, *, by: float) -> Tensor:
    """A right variant that takes a while."""
    time.sleep(0.005)
    return x * by


def wrong(x: Tensor, *, by: float) -> Tensor:
    """Twice too large."""
    return x * by * 2


def undefined(x: Tensor, *, by: float) -> Tensor:
    """NaN everywhere."""
    return torch.full_like(x, float("nan"))


def raising(x: Tensor, *, by: float) -> Tensor:
    """Refuses."""
    raise RuntimeError("no such instruction")


def hanging(x: Tensor, *, by: float) -> Tensor:
    """Does not come back."""
    while True:
        time.sleep(1)


def dying(x: Tensor, *, by: float) -> Any:
    """Ends its process."""
    os._exit(7)


def only_on_two_rows(x: Tensor, *, by: float) -> Tensor:
    """Right where it is checked, raises where it is timed."""
    if len(x) != 2:
        raise RuntimeError(f"{len(x)} rows")
    return x * by
