"""RMS norm and layer norm, alone or fused with the residual sum before them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import opmux
from opmux.dtypes import accumulation_dtype
from opmux.errors import invalid
from opmux.nn.linear import backend_repr
from opmux.nn.sizes import check_sizes


def _one_dim(module: str, normalized_shape: int | Sequence[int], eps: float | None) -> list[int]:
    """Reject a shape of several dims, and an eps that is negative or not a number."""
    shape = list(normalized_shape) if isinstance(normalized_shape, Sequence) else [normalized_shape]
    if len(shape) != 1:
        raise invalid(
            module, "normalized_shape", "one dim, the last", f"{tuple(shape)}",
            "flatten the dims of x that are normed together, and pass their product",
        )  # fmt: skip
    check_sizes(module, normalized_shape=shape[0])
    if eps is not None and not (isinstance(eps, int | float) and eps >= 0):
        raise invalid(module, "eps", "a number, 0 or more", repr(eps), "check the model's eps")
    return shape


class RMSNorm(nn.RMSNorm):
    """`torch.nn.RMSNorm` computed by `opmux.rms_norm`: ``y = x * rsqrt(mean(x**2) + eps) * (weight + weight_offset)``.

    Accumulated in float32 and rounded once, to x's dtype; the weight's dtype may differ. Given a residual, the
    sum and its norm are one op, `opmux.add_rms_norm`.

    Args:
        normalized_shape: The size of x's last dim.
        eps: Added to the mean square; None means the machine epsilon of the accumulation dtype, as in torch.
            Model families use 1e-6 or 1e-5.
        elementwise_affine: Whether there is a weight.
        device: The device of the weight.
        dtype: The dtype of the weight.
        weight_offset: Added to the weight before it is used. Gemma uses 1.0: its weights are initialised to 0.
        backend: Passed to the op.

    Raises:
        InvalidArgument: If normalized_shape is not a size or has several dims, or eps is below 0.

    Source:
        `torch.nn.RMSNorm`; weight_offset: Gemma Team, "Gemma", 2024, and its code.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        weight_offset: float = 0.0,
        backend: str | None = None,
    ) -> None:
        self.weight_offset = weight_offset  # before the weight is filled
        super().__init__(_one_dim("RMSNorm", normalized_shape, eps), eps, elementwise_affine, device, dtype)
        self.backend = backend

    def reset_parameters(self) -> None:
        """Fill the weight so that the norm's gain is 1."""
        if self.elementwise_affine:
            nn.init.constant_(self.weight, 1.0 - self.weight_offset)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        """Norm x, or the sum of x and a residual.

        Args:
            x: ``(*tokens, hidden)``.
            residual: The residual stream, ``(*tokens, hidden)``; its dtype may be wider than x's.

        Returns:
            y, ``(*tokens, hidden)``, in x's dtype; with a residual ``(y, sum)``, the sum in residual's dtype.
        """
        eps = torch.finfo(accumulation_dtype(x.dtype)).eps if self.eps is None else self.eps
        weight, offset = self.weight, self.weight_offset
        if weight is None:
            weight, offset = _ones(self, x), 0.0
        if residual is None:
            return opmux.rms_norm(x, weight, eps=eps, weight_offset=offset, backend=self.backend)
        return opmux.add_rms_norm(x, residual, weight, eps=eps, weight_offset=offset, backend=self.backend)

    def extra_repr(self) -> str:
        offset = f", weight_offset={self.weight_offset}" if self.weight_offset else ""
        return super().extra_repr() + offset + backend_repr(self.backend)


class LayerNorm(nn.LayerNorm):
    """`torch.nn.LayerNorm` computed by `opmux.layer_norm`: ``(x - mean(x)) * rsqrt(var(x) + eps) * weight + bias``.

    Accumulated in float32 and rounded once, to x's dtype; the weights' dtype may differ. That is so under autocast too,
    where torch's own layer norm returns float32 on a GPU. Given a residual, the sum and its norm are one op,
    `opmux.add_layer_norm`.

    Args:
        normalized_shape: The size of x's last dim.
        eps: Added to the variance.
        elementwise_affine: Whether there is a weight.
        bias: Whether there is a bias, where there is a weight.
        device: The device of the weights.
        dtype: The dtype of the weights.
        backend: Passed to the op.

    Raises:
        InvalidArgument: If normalized_shape is not a size or has several dims, or eps is below 0.

    Source:
        `torch.nn.LayerNorm`.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        backend: str | None = None,
    ) -> None:
        super().__init__(_one_dim("LayerNorm", normalized_shape, eps), eps, elementwise_affine, bias, device, dtype)
        self.backend = backend

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Any:  # torch's name
        """Norm ``input (*tokens, hidden)``, or its sum with a residual; returns y, or ``(y, sum)``."""
        weight = _ones(self, input) if self.weight is None else self.weight
        if residual is None:
            return opmux.layer_norm(input, weight, self.bias, eps=self.eps, backend=self.backend)
        return opmux.add_layer_norm(input, residual, weight, self.bias, eps=self.eps, backend=self.backend)

    def extra_repr(self) -> str:
        return super().extra_repr() + backend_repr(self.backend)


def _ones(norm: RMSNorm | LayerNorm, x: Tensor) -> Tensor:
    """A weight of ones for a norm without a weight; made at each call, so that the module needs no state for it."""
    return torch.ones(norm.normalized_shape, dtype=torch.float32, device=x.device)
