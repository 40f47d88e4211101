"""What the core calls for the cross entropy of logits."""

from typing import Any

import torch
from torch import Tensor

from opmux_triton.launch import launch
from opmux_triton.loss import kernels
from opmux_triton.loss.calls import Loss, count_of, loss_of, reduced
from opmux_triton.loss.configs import RowsConfig
from opmux_triton.rows import parts


def cross_entropy(logits: Tensor, target: Tensor, *, reduction: str, config: RowsConfig, **options: Any) -> Tensor:
    """The op `cross_entropy`."""
    target, loss = target.contiguous(), loss_of(options)
    losses = torch.empty_like(target, dtype=torch.float32)
    _losses(logits, target, losses, None, loss, config)
    return reduced(losses, target, loss, reduction)


def cross_entropy_lse(
    logits: Tensor, target: Tensor, *, reduction: str, config: RowsConfig, **options: Any
) -> tuple[Tensor, Tensor]:
    """The op `cross_entropy_lse`."""
    target, loss = target.contiguous(), loss_of(options)
    losses, lse = (torch.empty_like(target, dtype=torch.float32) for _ in range(2))
    _losses(logits, target, losses, lse, loss, config)
    return reduced(losses, target, loss, reduction), lse


def _losses(logits: Tensor, target: Tensor, losses: Tensor, lse: Tensor | None, loss: Loss, config: RowsConfig) -> None:
    if not target.numel():
        return
    meta = {"VOCAB": logits.shape[-1], "BLOCK": config.block, **loss.flags, "MEAN": False}
    others = (target, losses) if lse is None else (target, losses, lse)
    for rows, (some, classes, *outputs) in parts((logits,), others):
        arguments = (
            some, classes, outputs[0], outputs[1] if lse is not None else None, None, None, None, 0, *loss.numbers,
            rows.inner, *rows.stride, *rows.outer,
        )  # fmt: skip
        launch(kernels.token_losses, (rows.total,), arguments, {**meta, "num_warps": config.num_warps})


def cross_entropy_backward(
    grad_loss: Tensor,
    logits: Tensor,
    target: Tensor,
    lse: Tensor,
    grad_lse: Tensor | None,
    *,
    reduction: str,
    output_mask: tuple[bool, ...],
    config: RowsConfig,
    **options: Any,
) -> Tensor:
    """The op `cross_entropy_backward`."""
    if not output_mask[0]:
        return logits.new_empty(0)
    grad_logits = torch.empty_like(logits, memory_format=torch.contiguous_format)
    if not target.numel():
        return grad_logits
    target, loss, mean, vocab = target.contiguous(), loss_of(options), reduction == "mean", logits.shape[-1]
    count = count_of(target, loss) if mean else None
    others = [target, lse.contiguous(), grad_logits, grad_loss.contiguous()]
    if grad_lse is not None:
        others.append(grad_lse.contiguous())
    meta = {"VOCAB": vocab, "BLOCK": config.block, **loss.flags, "MEAN": mean, "num_warps": config.num_warps}
    for rows, (some, *given) in parts((logits,), others):
        classes, lses, grads, of_loss, *of_lse = given
        arguments = (
            some, classes, lses, grads, of_loss, of_lse[0] if of_lse else None, count, *loss.numbers,
            rows.inner, *rows.stride, *rows.outer,
        )  # fmt: skip
        launch(kernels.logit_gradients, (rows.total * -(-vocab // config.block),), arguments, meta)
    return grad_logits
