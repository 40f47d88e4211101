"""Small models made of the modules, and what is asked of two of them that should be alike."""

from typing import Any

import torch
from torch import Tensor

from opmux import nn

HIDDEN, HEADS, KV_HEADS = 32, 4, 2


class Block(torch.nn.Module):
    """A layer with every module in it."""

    def __init__(self, rotary: nn.RotaryEmbedding | None = None, **attention: Any) -> None:
        super().__init__()
        rotary = nn.RotaryEmbedding(HIDDEN // HEADS, 64) if rotary is None else rotary
        options = {"qk_norm": "head", "sinks": True, "softcap": 5.0, "window": (6, 0), **attention}
        self.first = nn.RMSNorm(HIDDEN, 1e-6)
        self.attention = nn.Attention(HIDDEN, HEADS, KV_HEADS, rotary=rotary, **options)
        self.second = nn.LayerNorm(HIDDEN)
        self.mlp = nn.GatedMLP(HIDDEN, 48, "gelu_tanh")

    def forward(self, x: Tensor, positions: Tensor | None = None, context: nn.Context | None = None) -> Tensor:
        y, x = self.second(self.attention(self.first(x), positions, context), x)
        return x + self.mlp(y)


class Model(torch.nn.Module):
    """Two layers that share their rope, and a head."""

    def __init__(self, **attention: Any) -> None:
        super().__init__()
        self.rotary = nn.RotaryEmbedding(HIDDEN // HEADS, 64)
        self.layers = torch.nn.ModuleList(Block(self.rotary, **attention) for _ in range(2))
        self.head = nn.Linear(HIDDEN, 11)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def randomise(module: torch.nn.Module) -> torch.nn.Module:
    """Values that are all different, sinks and norms too."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.3 + (weight.dim() == 1))
    return module


def inputs(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2)).to(dtype)


def assert_same(ours: torch.nn.Module, theirs: Any, x: Tensor, *more: Any, tolerance: float = 1e-5) -> None:
    """Equal results, and equal gradients of x and of the parameters that have the same names."""
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    got, wanted = ours(a, *more), theirs(b, *more)
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)
    weights = torch.linspace(-1, 1, got.numel(), dtype=torch.float32).reshape(got.shape).to(got.dtype)
    (got * weights).sum().backward()
    (wanted * weights).sum().backward()
    torch.testing.assert_close(a.grad, b.grad, rtol=10 * tolerance, atol=10 * tolerance)
    if isinstance(theirs, torch.nn.Module):
        twins = dict(theirs.named_parameters())
        assert sorted(dict(ours.named_parameters())) == sorted(twins)
        for name, weight in ours.named_parameters():
            torch.testing.assert_close(weight.grad, twins[name].grad, rtol=10 * tolerance, atol=10 * tolerance)


def reasons(report: nn.QuantizationReport) -> dict[str, str]:
    """The layers that were left, and why."""
    return {row.module: row.reason for row in report.left()}


def linear_of(value: float) -> torch.nn.Linear:
    """A layer with one such weight among others."""
    linear = torch.nn.Linear(4, 4)
    linear.weight.data[1, 2] = value
    return linear
