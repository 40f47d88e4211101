"""What a maker of an argument is given, and where makers are registered.

A plugin that defines an op with an argument whose contents must obey a rule of its own registers a maker with `makes`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from opmux.callpath.op import Op
from opmux.testing.case import Case


@dataclass
class Arguments:
    """The arguments of one call, by name; the tensors are contiguous."""

    tensors: dict[str, Tensor | None]
    options: dict[str, Any]


@dataclass
class Making:
    """What a maker of one argument is given.

    Attributes:
        name: the argument that is being made.
        shape: its shape.
        made: the arguments made so far, in order of the signature.
        shared: what makers of one call agree on (the lengths of the sequences, say).
    """

    case: Case
    op: Op
    device: torch.device
    generator: torch.Generator
    options: dict[str, Any]
    made: dict[str, Tensor | None] = field(default_factory=dict)
    shared: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32

    def normal(self, scale: float = 1.0, mean: float = 0.0) -> Tensor:
        """Normally distributed numbers in the argument's shape and dtype."""
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        drawn = torch.randn(self.shape, generator=self.generator, device=self.device, dtype=wide)
        return drawn.mul_(scale).add_(mean).to(self.dtype)

    def integers(self, low: int, high: int, shape: tuple[int, ...] | None = None) -> Tensor:
        """Integers from low to below high; low where there are none."""
        size = self.shape if shape is None else shape
        return torch.randint(
            low, max(high, low + 1), size, generator=self.generator, device=self.device, dtype=torch.int64
        )

    def permutation(self, count: int) -> Tensor:
        """A random order of the numbers below count."""
        return torch.randperm(count, generator=self.generator, device=self.device)

    def as_index(self, values: list[int] | Tensor) -> Tensor:
        """Index data in the argument's dtype, on its device."""
        return torch.as_tensor(values, device=self.device).to(self.dtype).reshape(self.shape)

    def dim(self, name: str) -> int:
        """A dim's size; a star dim's product."""
        size = self.case.dims[name]
        return math.prod(size) if isinstance(size, tuple) else int(size)


Maker = Callable[[Making], Tensor]

MAKERS: dict[tuple[str, str], Maker] = {}
"""(op or "*", argument) -> its maker."""


def makes(argument: str, *, op: str = "*") -> Callable[[Maker], Maker]:
    """Register a maker for the argument of that name, of every op or of one.

    Args:
        argument: the tensor argument's name.
        op: the op's name, or ``"*"`` for every op that has such an argument and no maker of its own.
    """

    def register(maker: Maker) -> Maker:
        MAKERS[op, argument] = maker
        return maker

    return register
