"""Weights of several quantised linears that take the same input, one behind the other in memory, for one product.

The linears keep their own weights and scales, which become parts of a joint tensor. A joint product is taken only while
each linear still has these very parts: whatever replaces one of them ends it, and the linears multiply one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from opmux.nn.quantized_product import quantized_product
from opmux_transformers.coded import Codes, backend_of, codes_of

JOINT = "_opmux_joint"
"""Attribute of a module whose linears have a joint weight: their `Joint`."""
_ALIGNED = 16
"""Bytes at multiples of which a part begins, as kernels want it."""


@dataclass(frozen=True, eq=False)
class Joint:
    """The joint weight of some linears.

    Attributes:
        names: The linears' names in the module that holds them, in order.
        weight: The codes, ``(n, k)``.
        scale: Their scales, float32.
        parts: Each linear's codes and scales.
        places: The address of each linear's codes.
        sizes: The rows of each.
    """

    names: tuple[str, ...]
    weight: Tensor
    scale: Tensor
    parts: tuple[tuple[Tensor, Tensor], ...]
    places: tuple[int, ...]
    sizes: tuple[int, ...]

    def holds(self, linears: Sequence[Any]) -> bool:
        """Whether the linears still have these parts."""
        compiling = torch.compiler.is_compiling()
        for linear, (weight, scale), place in zip(linears, self.parts, self.places, strict=True):
            codes = codes_of(linear)
            if codes is None:
                return False
            own, own_scale = codes.stored(linear)
            if own is not weight or own_scale is not scale:
                return False
            # Its memory may have been exchanged: Dynamo sees that it is on another device, and no addresses.
            if own.device != self.weight.device or (not compiling and own.data_ptr() != place):
                return False
        return True

    def product(self, q: Tensor, scale: Tensor, out_dtype: torch.dtype) -> Tensor:
        """The results of all linears side by side, for rows that are quantised already: ``(m, n)``."""
        return quantized_product(q, scale, self.weight, self.scale, None, out_dtype)


def joint_of(holder: nn.Module, names: Sequence[str]) -> Joint | None:
    """The joint weight of a module's linears, if they have one."""
    joint = holder.__dict__.get(JOINT)
    if joint is None or joint.names != tuple(names):
        return None
    children = holder._modules
    return joint if joint.holds([children[name] for name in names]) else None


def join(holder: nn.Module, names: Sequence[str]) -> Joint | None:
    """Give a module's linears parts of a joint weight; None, and no change, if they have nothing to join."""
    linears: list[Any] = [holder._modules.get(name) for name in names]
    every = [_joinable(linear) for linear in linears]
    if len(every) < 2 or None in every or len({id(linear) for linear in linears}) < len(linears):
        return None
    first, *others = every
    if any(_alike(one) != _alike(first) for one in others):
        return None
    weights, scales = ([pair[place] for _, *pair in every] for place in (0, 1))  # type: ignore[misc]
    by_row = scales[0].shape[0] == weights[0].shape[0]
    steps = (1 if by_row else 128, _ALIGNED)
    for weight, scale in zip(weights[:-1], scales[:-1], strict=True):
        if weight.shape[0] % steps[0] or weight.numel() % _ALIGNED or 4 * scale.numel() % _ALIGNED:
            return None
    with torch.no_grad():
        weight = torch.cat([one.view(torch.uint8) for one in weights]).view(weights[0].dtype)
        scale = torch.cat(scales)
        sizes = tuple(one.shape[0] for one in weights)
        parts = zip(weight.split(sizes), scale.split([one.shape[0] for one in scales]), strict=True)
        for linear, part in zip(linears, parts, strict=True):
            codes = codes_of(linear)
            assert codes is not None
            codes.take(linear, *part)
    torch._dynamo.mark_static_address(weight)
    torch._dynamo.mark_static_address(scale)
    stored = tuple(codes.stored(linear) for linear in linears if (codes := codes_of(linear)) is not None)
    return Joint(tuple(names), weight, scale, stored, tuple(own.data_ptr() for own, _ in stored), sizes)


def joined_again(holder: nn.Module, joint: Joint) -> Joint:
    """The joint weight that a module's linears have now; the former one, which none of them uses, if they have none."""
    if joint_of(holder, joint.names) is joint:
        return joint
    return join(holder, joint.names) or joint


def _joinable(linear: Any) -> tuple[Codes, Tensor, Tensor] | None:
    """How a linear stores its codes, the codes and the scales; None if they have to stay where they are."""
    codes = None if linear is None else codes_of(linear)
    if codes is None or codes.activations == "static" or backend_of(linear) is not None:
        return None
    if getattr(linear, "bias", None) is not None:
        return None
    weight, scale = codes.stored(linear)
    for tensor in (weight, scale):
        plain = type(tensor) in (Tensor, nn.Parameter) and not tensor.is_meta and not tensor.is_inference()
        if not plain or not tensor.is_contiguous() or tensor.ndim != 2:
            return None
    if weight.element_size() > 1 or scale.dtype != torch.float32:
        return None
    rows = scale.shape[0]
    return (codes, weight, scale) if rows in (weight.shape[0], -(-weight.shape[0] // 128)) else None


def _alike(one: Any) -> tuple[Any, ...]:
    """What has to be the same in linears with a joint weight."""
    codes, weight, scale = one
    by_row = scale.shape[0] == weight.shape[0]
    return codes, weight.dtype, weight.device, weight.shape[1], scale.shape[1], by_row
