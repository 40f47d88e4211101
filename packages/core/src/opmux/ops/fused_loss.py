"""The cross entropy of a linear layer, in chunks of tokens: the logits are never whole in memory.

Products and sums are accumulated in float32 (float64 for float64 tensors).
"""

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from opmux.declared.caveats import Caveat
from opmux.definition import Accumulated, define_op
from opmux.dtypes import Int64, Real, Statistic, accumulation_dtype
from opmux.ops._token_losses import REQUIRED, TokenLoss, check_targets
from opmux.ops._variants import variant

_REQUIRED = (*REQUIRED, ("hidden > 0", "a row has at least one column"))

CHUNK_ELEMENTS = 1 << 24
"""The references make no more logits than this at a time, or those of one token."""


def _check(op: str) -> Any:
    """The check of the targets under the name of an op."""

    def check(*, weight: Tensor, target: Tensor, ignore_index: int, **_: object) -> None:
        check_targets(op, target, ignore_index, weight.shape[0])

    return check


def _chunks(tokens: int, vocab: int) -> Iterator[slice]:
    rows = max(1, CHUNK_ELEMENTS // vocab)
    return (slice(first, min(first + rows, tokens)) for first in range(0, tokens, rows))


@define_op(
    outputs=("loss",),
    out_dtype={"loss": Accumulated("x")},
    reduced={"loss": "reduction"},
    same_dtype=(("x", "weight"),),
    require=_REQUIRED,
    gradient="fused_linear_cross_entropy_backward",
    gradient_through="fused_linear_cross_entropy_gradients",
    check_data=_check("fused_linear_cross_entropy"),
    flops="2 * tokens * vocab * hidden",
    capturable=False,
    caveats=(Caveat.NONFINITE_KIND,),
)
def fused_linear_cross_entropy(
    x: Real[Tensor, "*tokens hidden"],
    weight: Real[Tensor, "vocab hidden"],
    target: Int64[Tensor, "*tokens"],
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
) -> Statistic[Tensor, "*tokens"]:
    """Compute the cross entropy of a linear layer's outputs and target classes, without keeping the logits.

    The loss is `cross_entropy` of ``logits[t, j] = sum over i of x[t, i] * weight[j, i]``. The logits are made for some
    tokens at a time and are never whole in memory. They are accumulated in float32 (in float64 for float64); backends
    may round those of 16-bit tensors to x's dtype before the softmax, and the gradient of the logits after it, as a
    linear layer does.

    If a gradient is due and the loss is one number, the gradients of x and weight are computed in the forward pass
    (`fused_linear_cross_entropy_gradients`), the weight's accumulated in float32. For reduction ``"none"`` the
    backward makes the logits again; so it does for a float16 weight's gradient, whose sum over all tokens may overflow
    before it is divided by their number.

    The reference reads the targets, and so synchronises.

    Args:
        x: The rows that the linear layer gets, ``(*tokens, hidden)``.
        weight: The layer's weight, ``(vocab, hidden)``, in x's dtype.
        target: The class of each token, ``(*tokens,)`` int64, from 0 to ``vocab - 1``, or ignore_index; as for
            `cross_entropy`.
        ignore_index: The target of tokens to leave out.
        label_smoothing: The share of the uniform distribution in the target distribution, from 0 to 1.
        z_loss: The weight of the squared log-sum-exp; 0 or more.
        softcap: The bound of capped logits, 0 for no cap.
        reduction: ``"mean"`` over the tokens that are not ignored, ``"sum"``, or ``"none"`` for a loss of each token.

    Returns:
        loss: ``()``, or ``(*tokens,)`` for reduction ``"none"``; float32 (float64 for float64 x).

    Raises:
        InvalidArgument: If a shape, dtype or device breaks the signature, vocab or hidden is 0, label_smoothing is not
            between 0 and 1, z_loss or softcap is negative, or a target is no class.

    Source:
        Hsu et al., "Liger Kernel: Efficient Triton Kernels for LLM Training", 2024, section 3.2,
        https://arxiv.org/abs/2410.10989.
    """
    check_targets("fused_linear_cross_entropy", target, ignore_index, weight.shape[0])
    token = TokenLoss(ignore_index, label_smoothing, z_loss, softcap)
    acc = accumulation_dtype(x.dtype)
    rows, classes, wide = x.reshape(-1, x.shape[-1]), target.reshape(-1), weight.to(acc)
    losses = [x.new_empty(0, dtype=acc)]
    for chunk in _chunks(rows.shape[0], weight.shape[0]):
        losses.append(token.losses(rows[chunk].to(acc) @ wide.T, classes[chunk])[0])
    return token.reduced(torch.cat(losses).reshape(target.shape), target, reduction)


@variant(
    fused_linear_cross_entropy,
    outputs=("loss", "x_gradient", "weight_gradient"),
    out_dtype={"loss": Accumulated("x"), "x_gradient": "x", "weight_gradient": "weight"},
    reduced={"loss": "reduction"},
    gradient="fused_linear_cross_entropy_backward",
    check_data=_check("fused_linear_cross_entropy_gradients"),
    require=(
        *_REQUIRED,
        ("reduction != 'none' or not output_mask[2]", "without a reduction there is no gradient of the weight yet"),
    ),
    flops="2 * tokens * vocab * hidden * (1 + output_mask[1] + output_mask[2])",
)
def fused_linear_cross_entropy_gradients(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    softcap: float,
    reduction: str,
    output_mask: tuple[bool, ...] = (True, True, True),
) -> tuple[Statistic[Tensor, "*tokens"], Real[Tensor, "*tokens hidden"], Real[Tensor, "vocab hidden"]]:
    """Compute the cross entropy of a linear layer, and the gradients of the sum of the tokens' losses.

    `fused_linear_cross_entropy` runs as this op if a gradient is due. The gradients are those of the sum for every
    reduction, so that small ones do not underflow in float16; the backward divides. To autograd they are constants.
    A sum over many tokens may be past float16's largest number: for float16 tensors `fused_linear_cross_entropy` leaves
    the weight's gradient to the backward.

    Args:
        output_mask: Which of (loss, x_gradient, weight_gradient) are wanted.

    Returns:
        loss: As from `fused_linear_cross_entropy`; ``(0,)`` where masked out.
        x_gradient: The gradient of the sum of all losses, ``(*tokens, hidden)`` in x's dtype; ``(0,)`` where masked
            out.
        weight_gradient: The gradient of the sum of all losses, ``(vocab, hidden)`` in weight's dtype; ``(0,)`` where
            masked out.

    Raises:
        InvalidArgument: As for `fused_linear_cross_entropy`, or if weight_gradient is wanted without a reduction.

    Source:
        As for `fused_linear_cross_entropy`.
    """
    check_targets("fused_linear_cross_entropy_gradients", target, ignore_index, weight.shape[0])
    token = TokenLoss(ignore_index, label_smoothing, z_loss, softcap)
    ones = x.new_ones(target.shape, dtype=accumulation_dtype(x.dtype))
    losses, grad_x, grad_weight = _walk(token, x, weight, target, ones, output_mask[1:])
    loss = token.reduced(losses, target, reduction) if output_mask[0] else losses.new_empty(0)
    return loss, grad_x, grad_weight


def _walk(
    token: TokenLoss, x: Tensor, weight: Tensor, target: Tensor, grad_loss: Tensor, mask: tuple[bool, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of each token, and the wanted gradients of x and weight for these gradients of the tokens' losses."""
    acc = accumulation_dtype(x.dtype)
    rows, classes, factors, wide = x.reshape(-1, x.shape[-1]), target.reshape(-1), grad_loss.reshape(-1), weight.to(acc)
    losses = x.new_empty(rows.shape[0], dtype=acc)
    grad_x = x.new_empty(rows.shape if mask[0] else 0)
    grad_weight = torch.zeros_like(wide, memory_format=torch.contiguous_format) if mask[1] else weight.new_empty(0)
    for chunk in _chunks(rows.shape[0], weight.shape[0]):
        some = rows[chunk].to(acc)
        logits = some @ wide.T
        losses[chunk], lse = token.losses(logits, classes[chunk])
        grad = token.grad_logits(logits, classes[chunk], lse, factors[chunk])
        if mask[0]:
            grad_x[chunk] = (grad @ wide).to(x.dtype)
        if mask[1]:
            grad_weight += grad.T @ some
    return losses.reshape(target.shape), grad_x.reshape(x.shape) if mask[0] else grad_x, grad_weight.to(weight.dtype)


def _backward_flops(
    *,
    x: Tensor,
    weight: Tensor,
    x_gradient: Tensor | None,
    weight_gradient: Tensor | None,
    output_mask: tuple[bool, ...],
    **_: object,
) -> float:
    """Gradients that the forward has computed are scaled; the others take a product each, after that of the logits."""
    given = (x_gradient, weight_gradient)
    left = sum(want and ahead is None for want, ahead in zip(output_mask, given, strict=True))
    return 2.0 * x.numel() * weight.shape[0] * (left + (left > 0))


@define_op(
    outputs=("grad_x", "grad_weight"),
    out_dtype={"grad_x": "x", "grad_weight": "weight"},
    same_dtype=(("x", "weight", "x_gradient", "weight_gradient"),),
    require=(
        *_REQUIRED,
        ("weight_gradient is None or reduction != 'none'", "the gradient of a sum is no use without a reduction"),
    ),
    check_data=_check("fused_linear_cross_entropy_backward"),
    flops=_backward_flops,
    flops_bound="2 * tokens * vocab * hidden * (1 + output_mask[0] + output_mask[1])",
    capturable=False,
    caveats=(Caveat.NONFINITE_KIND,),
)
def fused_linear_cross_entropy_backward(
    grad_loss: Statistic[Tensor, "*tokens"],
    x: Real[Tensor, "*tokens hidden"],
    weight: Real[Tensor, "vocab hidden"],
    target: Int64[Tensor, "*tokens"],
    x_gradient: Real[Tensor, "*tokens hidden"] | None = None,
    weight_gradient: Real[Tensor, "vocab hidden"] | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
    output_mask: tuple[bool, ...] = (True, True),
) -> tuple[Real[Tensor, "*tokens hidden"], Real[Tensor, "vocab hidden"]]:
    """Compute the gradients of `fused_linear_cross_entropy`.

    With g the gradient of each token's own loss (grad_loss, for ``"mean"`` divided by the number of tokens that are
    not ignored, 0 for ignored ones): ``grad_x = g * x_gradient`` and ``grad_weight = g * weight_gradient``. Where one
    of these gradients of the sum is not given, it is computed from the logits, which are made again in chunks of
    tokens: ``grad_x = grad_logits @ weight`` and ``grad_weight = grad_logits.T @ x``, with the gradient of the logits
    as in `cross_entropy_backward`. Accumulated in float32 (in float64 for float64) and rounded once.

    Args:
        grad_loss: The gradient of the loss, for each token, ``(*tokens,)``: where the loss is one number, the
            gradient of that number, the same at every token (weight_gradient is multiplied by the first one's).
            Float32 (float64 for float64 x).
        x: The rows given to `fused_linear_cross_entropy`, ``(*tokens, hidden)``.
        weight: The weight given to `fused_linear_cross_entropy`, ``(vocab, hidden)``, in x's dtype.
        target: The targets given to `fused_linear_cross_entropy`, ``(*tokens,)``.
        x_gradient: What `fused_linear_cross_entropy_gradients` returned, ``(*tokens, hidden)``, in x's dtype.
        weight_gradient: What it returned for the weight, ``(vocab, hidden)``, in x's dtype.
        ignore_index: As given to `fused_linear_cross_entropy`.
        label_smoothing: As given to `fused_linear_cross_entropy`.
        z_loss: As given to `fused_linear_cross_entropy`.
        softcap: As given to `fused_linear_cross_entropy`.
        reduction: As given to `fused_linear_cross_entropy`.
        output_mask: Which of (grad_x, grad_weight) are wanted.

    Returns:
        grad_x: ``(*tokens, hidden)`` in x's dtype; ``(0,)`` where masked out.
        grad_weight: ``(vocab, hidden)`` in weight's dtype; ``(0,)`` where masked out.

    Raises:
        InvalidArgument: As for `fused_linear_cross_entropy`, or if weight_gradient is given without a reduction.

    Source:
        The chain rule on `fused_linear_cross_entropy`.
    """
    check_targets("fused_linear_cross_entropy_backward", target, ignore_index, weight.shape[0])
    token = TokenLoss(ignore_index, label_smoothing, z_loss, softcap)
    acc = accumulation_dtype(x.dtype)
    factors = token.of_each_token(grad_loss.to(acc), target, reduction)
    left = (output_mask[0] and x_gradient is None, output_mask[1] and weight_gradient is None)
    grad_x, grad_weight = x.new_empty(0), weight.new_empty(0)
    if any(left):
        _, grad_x, grad_weight = _walk(token, x, weight, target, factors, left)
    if output_mask[0] and x_gradient is not None:
        grad_x = (factors.unsqueeze(-1) * x_gradient.to(acc)).to(x.dtype).contiguous()
    if output_mask[1] and weight_gradient is not None:
        count = token.kept(target).sum()
        first = grad_loss.to(acc).reshape(-1)[:1].sum()  # any token's will do, and of no token it is 0
        factor = torch.where(count > 0, first / count if reduction == "mean" else first, 0.0)
        grad_weight = (factor * weight_gradient.to(acc)).to(weight.dtype).contiguous()
    return grad_x, grad_weight
