"""The input of argument makers, and their registry.

If the contents of an argument of a plugin's op must follow a rule, the plugin registers a maker with `makes`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from opmux.callpath.op import Op
from opmux.testing.case import Case
from opmux.testing.patterns import PATTERNS, indices


@dataclass
class Arguments:
    """The arguments of one call, by name; the tensors are contiguous."""

    tensors: dict[str, Tensor | None]
    options: dict[str, Any]


@dataclass
class Making:
    """The input of a maker of one argument.

    Attributes:
        name: the argument that is being made.
        shape: its shape.
        made: the arguments made so far, in order of the signature.
        shared: data that the makers of one call share (sequence lengths, for example).
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
        """Integers in [low, high); low if that range is empty."""
        size = self.shape if shape is None else shape
        return torch.randint(
            low, max(high, low + 1), size, generator=self.generator, device=self.device, dtype=torch.int64
        )

    def permutation(self, count: int) -> Tensor:
        """A random permutation of the numbers below count."""
        return torch.randperm(count, generator=self.generator, device=self.device)

    def indices(self, high: int, count: int | None = None) -> Tensor:
        """Indices below ``high`` in the case's pattern, or random if it has none; one row at a time.

        Args:
            high: the exclusive upper bound.
            count: how many; None fills the argument's shape, whose last dim is a row.
        """
        shape = self.shape if count is None else (count,)
        if self.case.data not in PATTERNS:
            return self.integers(0, high, shape)
        width = shape[-1] if shape else 1
        rows = math.prod(shape[:-1])
        made = [indices(self.case.data, width, high, self.generator) for _ in range(rows)]
        return torch.stack(made).reshape(shape) if made else self.integers(0, 1, shape)

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

DATA: dict[tuple[str, str], tuple[str, ...]] = {}
"""(op or "*", argument) -> the special contents that its maker knows."""


def makes(argument: str, *, op: str = "*", data: Sequence[str] = ()) -> Callable[[Maker], Maker]:
    """Register a maker for the argument of that name, of every op or of one.

    Args:
        argument: the tensor argument's name.
        op: the op's name, or ``"*"`` for every op that has such an argument and no maker of its own.
        data: words for special contents that the maker knows. For each word there are cases whose ``case.data`` is
            that word. Makers of index data should support all of `opmux.testing.patterns.PATTERNS`;
            `Making.indices` does so.
    """

    def register(maker: Maker) -> Maker:
        MAKERS[op, argument] = maker
        DATA[op, argument] = tuple(data)
        return maker

    return register


def is_offsets(op: Op, name: str) -> bool:
    """Whether an argument holds offsets, judging by its signature: integers whose only dim ends in ``+1``."""
    argument = op.signature.tensor(name)
    dims = argument.shape.dims
    indexing = not any(d.is_floating_point or d.itemsize == 1 for d in argument.dtypes)
    return indexing and len(dims) == 1 and getattr(dims[0], "offset", 0) == 1
