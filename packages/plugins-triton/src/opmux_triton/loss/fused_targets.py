"""What the core calls for the cross entropy of a linear layer: chunks of tokens, one after another.

The logits of a chunk, and the gradient of its rows, are products of whatever implementation is chosen for `linear`. The
gradient of the logits takes their place in memory; that of the weight is summed over the chunks in float32.
"""

from typing import Any

import torch
from torch import Tensor

import opmux
from opmux_triton.arithmetic import next_power_of_two
from opmux_triton.descriptors import ALIGNMENT
from opmux_triton.interpreter import INTERPRETED
from opmux_triton.launch import launch
from opmux_triton.loss import kernels, weight_kernels
from opmux_triton.loss.calls import Loss, count_of, flat, loss_of, reduced
from opmux_triton.loss.configs import FusedConfig, ProductConfig
from opmux_triton.rows import parts


def fused_linear_cross_entropy(
    x: Tensor, weight: Tensor, target: Tensor, *, reduction: str, config: FusedConfig, **options: Any
) -> Tensor:
    """The op `fused_linear_cross_entropy`."""
    walk = _Walk(x, weight, target, loss_of(options), config)
    walk.run((False, False), None, None)
    return walk.loss(reduction)


def fused_linear_cross_entropy_gradients(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    reduction: str,
    output_mask: tuple[bool, ...],
    config: FusedConfig,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """The op `fused_linear_cross_entropy_gradients`."""
    walk = _Walk(x, weight, target, loss_of(options), config)
    grad_x, grad_weight = walk.run(output_mask[1:], None, None)
    loss = walk.loss(reduction) if output_mask[0] else walk.losses.new_empty(0)
    return loss, grad_x, grad_weight


def fused_linear_cross_entropy_backward(
    grad_loss: Tensor,
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    x_gradient: Tensor | None,
    weight_gradient: Tensor | None,
    *,
    reduction: str,
    output_mask: tuple[bool, ...],
    config: FusedConfig,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """The op `fused_linear_cross_entropy_backward`."""
    loss = loss_of(options)
    of_loss, classes, mean = flat(grad_loss), flat(target), reduction == "mean"
    count = count_of(classes, loss)
    left = (output_mask[0] and x_gradient is None, output_mask[1] and weight_gradient is None)
    grad_x, grad_weight = x.new_empty(0), weight.new_empty(0)
    if left[1] and weight.dtype is torch.float16 and reduction != "none" and classes.numel():
        # Divided by the number of tokens, most gradients of logits are below the least float16: the sums are divided.
        _, sums = _Walk(x, weight, target, loss, config).run((False, True), None, None, torch.float32)
        grad_weight = _scaled(sums, None, of_loss, count, loss, mean, weight.dtype)
        left = (left[0], False)
    if any(left):
        grads = _Walk(x, weight, target, loss, config).run(left, of_loss, count if mean else None)
        grad_x, grad_weight = grads[0], grads[1] if left[1] else grad_weight
    if output_mask[0] and x_gradient is not None:
        grad_x = _scaled(x_gradient, target.contiguous(), grad_loss.contiguous(), count, loss, mean)
    if output_mask[1] and weight_gradient is not None:
        if classes.numel():
            grad_weight = _scaled(weight_gradient, None, of_loss, count, loss, mean)
        else:
            grad_weight = torch.zeros_like(weight_gradient, memory_format=torch.contiguous_format)
    return grad_x, grad_weight


def _aligned(weight: Tensor) -> Tensor:
    """The weight, with rows of zeros behind it where rows of 16-bit logits would not be multiples of 16 bytes.

    Such rows have no descriptors, and what multiplies them is slow: with 50257 classes and 768 columns the loss and
    gradients of 2550 tokens took 11 ms on an H200, and take 1.7.
    """
    vocab, size = weight.shape[0], weight.element_size()
    more = -vocab % (ALIGNMENT // size)
    if size != 2 or more == 0:
        return weight
    padded = weight.new_empty((vocab + more, weight.shape[1]))
    padded[:vocab].copy_(weight)
    padded[vocab:].zero_()
    return padded


class _Walk:
    """A walk over the chunks of a call; ``losses`` has the loss of each token when it is over."""

    def __init__(self, x: Tensor, weight: Tensor, target: Tensor, loss: Loss, config: FusedConfig) -> None:
        self.shape, self.weight, self.options, self.config = x.shape, weight.detach(), loss, config
        self.rows = x.detach().reshape(-1, x.shape[-1])
        self.target = target.contiguous()
        self.losses = torch.empty_like(self.target, dtype=torch.float32)

    def loss(self, reduction: str) -> Tensor:
        """The reduced loss."""
        return reduced(self.losses, self.target, self.options, reduction)

    def run(
        self,
        mask: tuple[bool, ...],
        grad_loss: Tensor | None,
        count: Tensor | None,
        weight_dtype: torch.dtype | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Compute the losses, and the wanted gradients of x and weight.

        Args:
            mask: which of the two are wanted; the others are empty.
            grad_loss: the gradient of the loss for each token; None for that of the sum of all losses.
            count: the number of tokens that a mean is over; None for other reductions.
            weight_dtype: the dtype of the weight's gradient, if it is not that of the weight.
        """
        rows, vocab = self.rows, self.weight.shape[0]
        tokens = rows.shape[0]
        weight = _aligned(self.weight) if tokens else self.weight
        of_weight = weight_dtype or weight.dtype
        grad_x = rows.new_empty(rows.shape if mask[0] else 0)
        sums: Tensor | None = None
        step = self.config.tokens(tokens, vocab, rows.element_size())
        with torch.no_grad():
            for first in range(0, tokens, step):
                some = rows[first : first + step]
                logits = opmux.linear(some, weight)
                self._replace(logits, first, any(mask), grad_loss, count)
                if mask[0]:
                    opmux.linear(logits, weight.t(), out=grad_x[first : first + step])
                if mask[1]:
                    dtype = torch.float32 if step < tokens else of_weight
                    if self.config.by_blas and adds_by_blas(some):
                        sums = _add_by_blas(logits, some, sums, dtype)
                    else:
                        sums = _add_product(logits, some, sums, dtype, self.config.product)
                del logits  # before the memory of the next chunk's, or of the result, is taken
        grad_weight = weight.new_empty(0)
        if mask[1]:
            if sums is None:
                grad_weight = torch.zeros_like(weight, memory_format=torch.contiguous_format)
            else:
                grad_weight = sums[:vocab].to(of_weight)
        return grad_x.reshape(self.shape) if mask[0] else grad_x, grad_weight

    def _replace(
        self, logits: Tensor, first: int, graded: bool, grad_loss: Tensor | None, count: Tensor | None
    ) -> None:
        """Write the losses of a chunk; its logits become their own gradients if they are asked for."""
        config, vocab, width = self.config.rows, self.weight.shape[0], logits.shape[-1]
        grads = logits if graded else None
        arguments = (
            logits, self.target, self.losses, None, grads, grad_loss, count, first, *self.options.numbers,
            None, width, None,
        )  # fmt: skip
        meta = {"VOCAB": vocab, "BLOCK": config.block, **self.options.flags, "MEAN": count is not None}
        launch(kernels.token_losses, (logits.shape[0],), arguments, {**meta, "num_warps": config.num_warps})
        if graded and width > vocab:
            logits[:, vocab:].zero_()


def _add_product(
    grads: Tensor, x: Tensor, sums: Tensor | None, dtype: torch.dtype, c: ProductConfig
) -> Tensor:  # fmt: skip
    """``grads.T @ x``, added to what there is; the first chunk's in new memory of ``dtype``."""
    (tokens, vocab), hidden = grads.shape, x.shape[1]
    out = x.new_empty((vocab, hidden), dtype=dtype) if sums is None else sums
    meta = {
        "ADDED": sums is not None,
        "EVEN_K": tokens % c.block_k == 0,
        "BLOCK_M": c.block_m,
        "BLOCK_N": c.block_n,
        "BLOCK_K": c.block_k,
        "GROUP": c.group,
        "UPCAST": INTERPRETED and x.element_size() == 2,
    }
    arguments = (grads, x, out, vocab, hidden, tokens, x.stride(0), x.stride(1))
    tiles = -(-vocab // c.block_m) * -(-hidden // c.block_n)
    launch(weight_kernels.add_product, (tiles,), arguments, meta | c.compiler_options())
    return out


def adds_by_blas(x: Tensor) -> bool:
    """Whether cuBLAS can add a product of such rows in float32, as torch calls it.

    In torch's deterministic mode products of torch's raise an error, unless an environment variable is set.
    """
    halves = x.dtype in (torch.bfloat16, torch.float16)
    return x.is_cuda and halves and torch.version.cuda is not None and not torch.are_deterministic_algorithms_enabled()


def _add_by_blas(grads: Tensor, x: Tensor, sums: Tensor | None, dtype: torch.dtype) -> Tensor:
    """`_add_product` by cuBLAS."""
    if sums is None:
        return torch.mm(grads.t(), x, out_dtype=dtype)
    return torch.addmm(sums, grads.t(), x, out_dtype=sums.dtype, out=sums)


def _scaled(
    given: Tensor,
    target: Tensor | None,
    grad_loss: Tensor,
    count: Tensor,
    loss: Loss,
    mean: bool,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Gradients of the sum of all losses as those of the loss: of the rows of tokens, or without target of a weight."""
    out = torch.empty_like(given, dtype=dtype or given.dtype, memory_format=torch.contiguous_format)
    if not given.numel():
        return out
    width = given.shape[-1]
    block = min(2048, max(512, next_power_of_two(width)))
    meta = {"WIDTH": width, "BLOCK": block, "MEAN": mean, "num_warps": block // 512}
    others = [out] if target is None else [out, target, grad_loss]
    for rows, (some, results, *of_tokens) in parts((given,), others):
        classes, grads = of_tokens if of_tokens else (None, grad_loss)
        arguments = (
            some, results, classes, grads, count, rows.total, loss.ignore_index, rows.inner, *rows.stride, *rows.outer,
        )  # fmt: skip
        launch(kernels.scaled_gradients, (rows.total * -(-width // block),), arguments, meta)
    return out
