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


class StraightThrough(torch.autograd.Function):
    """The product of rows or a weight that require a gradient, which passes through their quantisation unchanged."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        original: Tensor | None,
        weight: Tensor,
        weight_scale: Tensor,
        input_scale: Tensor | None,
        bias: Tensor | None,
        options: tuple[str, torch.dtype, str | None],
    ) -> Tensor:
        """Quantise the rows and multiply.

        Args:
            ctx: torch's.
            x: The rows, ``(m, k)``.
            original: What the codes were made of, ``(n, k)``, to get its gradient; or None.
            weight: As in `quantized_product`.
            weight_scale: As in `quantized_product`.
            input_scale: As in `quantize_rows`.
            bias: As in `quantized_product`.
            options: ``(activations, out_dtype, backend)``.
        """
        activations, out_dtype, backend = options
        wants_weight = original is not None and original.requires_grad
        ctx.save_for_backward(weight, weight_scale, x if wants_weight else None)
        ctx.x_dtype, ctx.backend = x.dtype, backend
        ctx.original_dtype = None if original is None else original.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        q, scale = quantize_rows(x.detach(), weight.dtype, activations, input_scale, backend)
        bias = None if bias is None else bias.detach()
        return quantized_product(q, scale, weight.detach(), weight_scale.detach(), bias, out_dtype, backend)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of the rows, of the original weight and of the bias; scales are fixed."""
        (grad,) = grads
        weight, weight_scale, x = ctx.saved_tensors
        wants_x, wants_original, *_, wants_bias, _ = ctx.needs_input_grad
        of_x = of_original = of_bias = None
        if wants_x:
            values = opmux.dequantize(weight.detach(), weight_scale.detach(), out_dtype=grad.dtype, backend=ctx.backend)
            of_x = opmux.linear(grad, values.t(), backend=ctx.backend).to(ctx.x_dtype)
        if wants_original:
            of_original = opmux.linear(grad.t(), x.to(grad.dtype).t(), backend=ctx.backend).to(ctx.original_dtype)
        if wants_bias:
            of_bias = grad.sum(0).to(ctx.bias_dtype)
        return of_x, of_original, None, None, None, of_bias, None
