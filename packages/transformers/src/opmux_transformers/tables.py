"""The modules that make a model's cos and sin, from which every layer rotates."""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from opmux_transformers.foreign import whose_forward
from opmux_transformers.trial import Trial, still


@dataclass(frozen=True)
class Tables:
    """The module that makes a model's cos and sin.

    Attributes:
        path: Its path in the model.
        width: The last dim of cos and of sin.
        kinds: The further arguments of its forward, after ``(x, position_ids)``: one tuple for each kind of layer.
        is_complex: Whether it gives one complex tensor, ``cos + i sin``, rather than two.
    """

    path: str
    width: int
    kinds: tuple[tuple[Any, ...], ...]
    is_complex: bool = False

    def kind_of(self, attention: nn.Module) -> tuple[Any, ...]:
        """Which of its kinds an attention's layer uses."""
        if self.kinds == ((),):
            return ()
        return (attention.config.layer_types[attention.layer_idx],)  # type: ignore[union-attr, index]


def find_tables(path: str, module: nn.Module, dtype: torch.dtype) -> Tables | None:
    """Try whether a module makes cos and sin; None if it does not."""
    buffers = {name: b for name, b in module._buffers.items() if b is not None}
    if not any("inv_freq" in name for name in buffers) or any(b.is_meta for b in buffers.values()):
        return None
    if "forward" in vars(module) and whose_forward(module) is not None:  # torch's own decorators do not count
        return None
    kinds: tuple[tuple[Any, ...], ...] = ((),)
    if "layer_type" in inspect.signature(module.forward).parameters:
        kinds = tuple((kind,) for kind in sorted(set(getattr(module.config, "layer_types", ()))))
    try:
        made = [make(module, kind, 5, dtype) for kind in kinds]
    except Exception:  # the module holds inverse frequencies for another purpose
        return None
    looks = {(angles[0].shape[-1], kinds, isinstance(angles, Tensor)) for angles in made}
    return Tables(path, *looks.pop()) if len(looks) == 1 else None


def make(module: nn.Module, kind: tuple[Any, ...], seq: int, dtype: torch.dtype) -> Any:
    """What a copy of a module gives for the positions 3, 4, 5, ...: cos and sin, each ``(1, seq, width)``, or one
    complex tensor of that shape.

    Raises:
        ValueError: if it returns anything else.
    """
    like = next(module.buffers())
    x = torch.zeros(1, seq, 8, dtype=dtype, device=like.device)
    with still():
        angles = Trial.own(module)(x, torch.arange(3, 3 + seq, device=like.device).unsqueeze(0), *kind)
    tensors = (angles,) if isinstance(angles, Tensor) and angles.is_complex() else tuple(angles)
    if len(tensors) > 2 or tensors[0].ndim != 3 or tensors[0].shape[:2] != (1, seq):
        raise ValueError(f"expected cos and sin (1, {seq}, width), got {[list(t.shape) for t in tensors]}")
    if tensors[0].shape != tensors[-1].shape or (len(tensors) == 1) != tensors[0].is_complex():
        raise ValueError("cos and sin differ in shape, or one is missing")
    return angles


def nearest(path: str, tables: Mapping[str, Tables] | Iterable[str]) -> str | None:
    """The path of the tables nearest to a path among its enclosing modules; None if there are none."""

    def shared(other: str) -> int:
        parent = other.rpartition(".")[0]
        return len(parent) if not parent or path.startswith(f"{parent}.") else -1

    best = max(tables, key=shared, default=None)
    return best if best is not None and shared(best) >= 0 else None
