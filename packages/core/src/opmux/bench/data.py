"""The arguments of a timed call, and the random tensors that they are made of."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from opmux.bench.shapes import Shape


@dataclass(frozen=True)
class Arguments:
    """One call of an op.

    Attributes:
        tensors: all of the op's tensors, None for an absent optional one.
        options: the options that are not defaults.
        moved: bytes that the call must read and write, if they do not follow from its inputs and outputs.
        flops: floating-point operations, if they do not follow from the op's own expression.
        share: the share of the op's own expression that applies, such as half of the scores under a causal mask.
    """

    tensors: tuple[Tensor | None, ...]
    options: dict[str, Any] = field(default_factory=dict)
    moved: int | None = None
    flops: float | None = None
    share: float = 1.0


@dataclass(frozen=True)
class Data:
    """Random tensors of one dtype on one device, the same in every run."""

    device: torch.device
    dtype: torch.dtype
    generator: torch.Generator

    @classmethod
    def seeded(cls, device: torch.device, dtype: torch.dtype, seed: int = 0) -> "Data":
        """Data from a seed."""
        return cls(device, dtype, torch.Generator(device).manual_seed(seed))

    def normal(self, *sizes: int, scale: float = 1.0) -> Tensor:
        """Normally distributed values."""
        made = torch.randn(sizes, generator=self.generator, device=self.device, dtype=torch.float32)
        return (made * scale).to(self.dtype)

    def weight(self, *sizes: int) -> Tensor:
        """A linear's weight: rows of length about one."""
        return self.normal(*sizes, scale=sizes[-1] ** -0.5)

    def gain(self, size: int) -> Tensor:
        """A norm's weight: about one."""
        return 1 + self.normal(size, scale=0.1)

    def lse(self, *sizes: int) -> Tensor:
        """Log-sum-exps, in the accumulation dtype."""
        return self.normal(*sizes).to(torch.float64 if self.dtype == torch.float64 else torch.float32)

    def ints(self, values: Sequence[int], dtype: torch.dtype = torch.int32) -> Tensor:
        """The given integers as a tensor."""
        return torch.tensor(list(values), dtype=dtype, device=self.device)

    def angles(self, positions: int, head_dim: int) -> tuple[Tensor, Tensor]:
        """Rope's tables of cosines and sines, float32."""
        steps = torch.arange(head_dim // 2, device=self.device, dtype=torch.float32)
        angles = torch.arange(positions, device=self.device)[:, None] * 10000.0 ** (-2 * steps / head_dim)
        return angles.cos(), angles.sin()

    def offsets(self, batch: int, length: int) -> Tensor:
        """Where sequences of equal length begin, then where the last one ends."""
        return self.ints(range(0, (batch + 1) * length, length))


Maker = Callable[[Data, Shape], Arguments]
