"""Products of rows with quantised weights: the blocks that share a scale, fitted to the pairs that the op takes."""

from typing import Any

import torch
from torch import Tensor

import opmux

ACTIVATIONS: dict[str, tuple[int, int]] = {"token": (1, -1), "block": (1, 128), "static": (-1, -1)}
"""How rows are quantised -> the block that shares a scale; the scale of ``"static"`` is known beforehand."""

WEIGHTS: dict[str, tuple[int, int]] = {"channel": (1, -1), "block": (128, 128), "tensor": (-1, -1)}
"""How a weight is quantised -> the block that shares a scale."""


def scale_shape(rows: int, columns: int, block: tuple[int, int]) -> tuple[int, int]:
    """The shape of the scales of a matrix."""
    return tuple(1 if side == -1 else -(-size // side) for size, side in zip((rows, columns), block, strict=True))  # type: ignore[return-value]


def quantize_rows(
    x: Tensor, dtype: torch.dtype, activations: str, input_scale: Tensor | None = None, backend: str | None = None
) -> tuple[Tensor, Tensor]:
    """Quantise rows.

    Args:
        x: The rows, ``(m, k)``.
        dtype: That of the codes.
        activations: One of `ACTIVATIONS`.
        input_scale: The known scale, ``(1, 1)`` float32, if activations is ``"static"``.
        backend: Passed to the op.

    Returns:
        The codes, ``(m, k)``, and their scales.
    """
    if activations == "static":
        assert input_scale is not None
        return opmux.static_quantize(x, input_scale, dtype=dtype, backend=backend), input_scale
    q, scale = opmux.quantize(x, dtype=dtype, block=ACTIVATIONS[activations], backend=backend)
    return q, scale


def quantized_product(
    q: Tensor,
    scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype,
    backend: str | None = None,
) -> Tensor:
    """Multiply quantised rows by a quantised, transposed weight, with any pair of `ACTIVATIONS` and `WEIGHTS`.

    Args:
        q: The codes of the rows, ``(m, k)``.
        scale: Their scales, as `quantize_rows` returns them.
        weight: The codes of the weight, ``(n, k)``.
        weight_scale: Its scales, one for each block of one of `WEIGHTS`.
        bias: ``(n,)``, or None.
        out_dtype: The dtype of the result.
        backend: Passed to the op.

    Returns:
        ``(m, n)`` in out_dtype.
    """
    scale, weight_scale = _paired(scale, weight_scale, q.shape[0], *weight.shape)
    return opmux.scaled_linear(q, weight, scale, weight_scale, bias, out_dtype=out_dtype, backend=backend)


def _paired(scale: Tensor, weight_scale: Tensor, m: int, n: int, k: int) -> tuple[Tensor, Tensor]:
    """Views of the scales that are a pair of `opmux.scaled_linear`: the scales of the coarser one are repeated."""
    blocks = -(-k // 128)
    columns = max(scale.shape[1], weight_scale.shape[1])
    if columns > 1:
        rows = n if weight_scale.shape[0] == n else -(-n // 128)
        return scale.expand(m, blocks), weight_scale.expand(rows, blocks)
    if weight_scale.shape[0] > 1:
        return scale.expand(m, 1), weight_scale
    if scale.shape[0] == 1:  # also a single row
        return scale[:m], weight_scale
    return scale, weight_scale.expand(n, 1)


def input_gradient(grad: Tensor, weight: Tensor, weight_scale: Tensor, backend: str | None = None) -> Tensor:
    """The gradient of the rows, as if they had not been quantised: ``grad (m, n)`` by the dequantised weight."""
    values = opmux.dequantize(weight, weight_scale, out_dtype=grad.dtype, backend=backend)
    return opmux.linear(grad, values.t(), backend=backend)


class StraightThrough(torch.autograd.Function):
    """The product of rows that require a gradient, which passes through their quantisation unchanged."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        weight_scale: Tensor,
        input_scale: Tensor | None,
        bias: Tensor | None,
        options: tuple[str, torch.dtype, str | None],
    ) -> Tensor:
        """Quantise and multiply; options are ``(activations, out_dtype, backend)``."""
        activations, out_dtype, backend = options
        ctx.save_for_backward(weight, weight_scale)
        ctx.x_dtype, ctx.backend = x.dtype, backend
        q, scale = quantize_rows(x.detach(), weight.dtype, activations, input_scale, backend)
        return quantized_product(q, scale, weight, weight_scale, bias, out_dtype, backend)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient of x alone: weight, scales and bias are fixed."""
        weight, weight_scale = ctx.saved_tensors
        grad = input_gradient(grads[0], weight, weight_scale, ctx.backend).to(ctx.x_dtype)
        return grad, None, None, None, None, None
