"""Kernels of the cross entropy: a program holds one token, and walks over its logits in blocks of BLOCK."""

import triton
import triton.language as tl

from opmux_triton.addressing import load_tile, row_starts, store_tile
from opmux_triton.dependent_launch import await_predecessor
from opmux_triton.rounding import rounded
from opmux_triton.scoring.base2 import LOG2_E

LOWEST = tl.constexpr(-(2.0**127))
"""What a maximum begins with: a difference from it is no NaN, as -inf - -inf is, and in base 2 it is still finite."""


@triton.jit
def exponential(x):
    """The exponential of x, which is at most about 0."""
    return tl.exp2(x * LOG2_E)


@triton.jit
def capped(logits, softcap, CAPPED: tl.constexpr):
    """``softcap * tanh(logits / softcap)``; logits as they are without a cap."""
    if CAPPED:
        logits = softcap - 2.0 * softcap / (tl.exp2(logits * (2.0 * LOG2_E / softcap)) + 1.0)
    return logits


@triton.jit
def load_logits(
    row, columns, softcap, VOCAB: tl.constexpr, BLOCK: tl.constexpr, CAPPED: tl.constexpr, EVICT: tl.constexpr
):  # fmt: skip
    """Logits in float32, capped; -inf past the last one."""
    WHOLE: tl.constexpr = VOCAB % BLOCK == 0
    values = capped(load_tile(row + columns, columns < VOCAB, WHOLE, EVICT).to(tl.float32), softcap, CAPPED)
    if not WHOLE:
        values = tl.where(columns < VOCAB, values, float("-inf"))
    return values


@triton.jit
def log_sum_exp(
    row, softcap, VOCAB: tl.constexpr, BLOCK: tl.constexpr, CAPPED: tl.constexpr, SUMMED: tl.constexpr,
    EVICT: tl.constexpr,
):  # fmt: skip
    """(largest logit, logarithm of the sum of exponentials relative to it, sum of the logits if SUMMED).

    Each column of a block has a running maximum and a sum relative to it, which are joined at the end. A new logit
    takes one exponential: of its distance to the maximum, by which either the sum or the new term is scaled.
    """
    top = tl.full([BLOCK], LOWEST, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    plain = tl.zeros([BLOCK], tl.float32)
    for start in range(0, VOCAB, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        values = load_logits(row, columns, softcap, VOCAB, BLOCK, CAPPED, EVICT)
        above = values - top
        decay = exponential(-tl.abs(above))
        total = tl.where(above > 0.0, total * decay + 1.0, total + decay)
        top = tl.maximum(top, values)
        if SUMMED:
            plain += tl.where(columns < VOCAB, values, 0.0)
    highest = tl.max(top, 0)
    below = tl.where(top == highest, 0.0, top - highest)  # of two infinities 0, not NaN
    total = tl.sum(total * exponential(below), 0)
    return highest, tl.log(total), tl.sum(plain, 0)


@triton.jit
def slopes(
    values, columns, lse, label, grad_loss, grad_lse, smoothing, z_loss, softcap,
    VOCAB: tl.constexpr, CAPPED: tl.constexpr, SMOOTHED: tl.constexpr, PENALISED: tl.constexpr,
):  # fmt: skip
    """The gradients of the capped logits ``values``, by way of the loss and, unless it is None, of lse."""
    share = exponential(values - lse)
    grad = share
    if PENALISED:
        grad = share * (1.0 + 2.0 * z_loss * lse)
    grad = tl.where(columns == label, grad - (1.0 - smoothing), grad)
    if SMOOTHED:
        grad -= smoothing / VOCAB
    grad *= grad_loss
    if grad_lse is not None:
        grad += share * grad_lse
    if CAPPED:
        part = values / softcap
        grad *= 1.0 - part * part
    return grad


@triton.jit
def factor_of(token, grad_loss, count, MEAN: tl.constexpr):
    """The gradient of a token's own loss, given that of the loss for each token (None is 1) and, if MEAN, the count.

    In float32, whatever dtype the gradients that come in have.
    """
    factor = 1.0
    if grad_loss is not None:
        factor = tl.load(grad_loss + token).to(tl.float32)
        if MEAN:
            factor /= tl.load(count).to(tl.float32)
    return factor


@triton.jit(do_not_specialize=["ignored", "first"])
def token_losses(
    logits, target, losses, lses, grads, grad_loss, count, first, ignored, smoothing, z_loss, softcap,
    inner, stride, outer,
    VOCAB: tl.constexpr, BLOCK: tl.constexpr, CAPPED: tl.constexpr, SMOOTHED: tl.constexpr, PENALISED: tl.constexpr,
    MEAN: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """The loss of each token from ``first`` on, its log-sum-exp unless lses is None, its gradients unless grads is.

    The logits are those of ``first`` and of the tokens after it, and so are grads, in the same strides and possibly in
    the same memory; the other tensors are those of all tokens.
    """
    await_predecessor(DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    label = tl.load(target + first + token)
    live = label != ignored
    row = logits + row_starts(token, inner, stride, outer, VOCAB)
    loss = 0.0
    lse = 0.0
    if live:
        highest, logarithm, plain = log_sum_exp(row, softcap, VOCAB, BLOCK, CAPPED, SMOOTHED, "evict_last")
        inside = (label >= 0) & (label < VOCAB)
        picked = capped(tl.load(row + label, mask=inside, other=0.0).to(tl.float32), softcap, CAPPED)
        lse = highest + logarithm
        loss = (highest - picked) + logarithm
        if SMOOTHED:
            loss = (1.0 - smoothing) * loss + smoothing * (lse - plain / VOCAB)
        if PENALISED:
            loss += z_loss * lse * lse
    if losses is not None:
        tl.store(losses + first + token, loss)
    if lses is not None:
        tl.store(lses + first + token, lse)
    if grads is not None:
        WHOLE: tl.constexpr = VOCAB % BLOCK == 0
        factor = factor_of(first + token, grad_loss, count, MEAN)
        grad_row = grads + row_starts(token, inner, stride, outer, VOCAB)
        tl.debug_barrier()  # the logit of the label is read above, and overwritten below where grads are the logits
        for start in range(0, VOCAB, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            grad = tl.zeros([BLOCK], tl.float32)
            if live:
                values = load_logits(row, columns, softcap, VOCAB, BLOCK, CAPPED, "evict_first")
                grad = slopes(
                    values, columns, lse, label, factor, None, smoothing, z_loss, softcap,
                    VOCAB, CAPPED, SMOOTHED, PENALISED,
                )  # fmt: skip
            store_tile(grad_row + columns, rounded(grad, grads.dtype.element_ty), columns < VOCAB, WHOLE)


@triton.jit(do_not_specialize=["ignored"])
def logit_gradients(
    logits, target, lses, grads, grad_loss, grad_lse, count, ignored, smoothing, z_loss, softcap,
    inner, stride, outer,
    VOCAB: tl.constexpr, BLOCK: tl.constexpr, CAPPED: tl.constexpr, SMOOTHED: tl.constexpr, PENALISED: tl.constexpr,
    MEAN: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """The gradients of a block of one token's logits, given its log-sum-exp; grads are dense."""
    await_predecessor(DEPENDENT)
    BLOCKS: tl.constexpr = (VOCAB + BLOCK - 1) // BLOCK
    WHOLE: tl.constexpr = VOCAB % BLOCK == 0
    token = (tl.program_id(0) // BLOCKS).to(tl.int64)
    columns = tl.program_id(0) % BLOCKS * BLOCK + tl.arange(0, BLOCK)
    label = tl.load(target + token)
    grad = tl.zeros([BLOCK], tl.float32)
    if label != ignored:
        of_lse = None
        if grad_lse is not None:
            of_lse = tl.load(grad_lse + token)
        row = logits + row_starts(token, inner, stride, outer, VOCAB)
        values = load_logits(row, columns, softcap, VOCAB, BLOCK, CAPPED, "evict_first")
        grad = slopes(
            values, columns, tl.load(lses + token), label, factor_of(token, grad_loss, count, MEAN), of_lse,
            smoothing, z_loss, softcap, VOCAB, CAPPED, SMOOTHED, PENALISED,
        )  # fmt: skip
    store_tile(grads + token * VOCAB + columns, rounded(grad, grads.dtype.element_ty), columns < VOCAB, WHOLE)


@triton.jit(do_not_specialize=["tokens", "ignored"])
def reduce_losses(
    target, losses, loss, count, tokens, ignored, BLOCK: tl.constexpr, MEAN: tl.constexpr, DEPENDENT: tl.constexpr
):  # fmt: skip
    """The number of tokens that are not ignored, unless count is None; the sum or MEAN of losses, unless those are."""
    await_predecessor(DEPENDENT)
    total = tl.zeros([BLOCK], tl.float32)
    kept = tl.zeros([BLOCK], tl.int32)
    for start in range(0, tokens, BLOCK):
        at = start + tl.arange(0, BLOCK)
        labels = tl.load(target + at, mask=at < tokens, other=ignored)
        kept += (labels != ignored).to(tl.int32)
        if losses is not None:
            total += tl.load(losses + at, mask=at < tokens, other=0.0)
    number = tl.sum(kept, 0)
    if count is not None:
        tl.store(count, number)
    if losses is not None:
        whole = tl.sum(total, 0)
        if MEAN:
            whole = whole / number.to(tl.float32)
        tl.store(loss, whole)


@triton.jit(do_not_specialize=["rows", "ignored"])
def scaled_gradients(
    given, grads, target, grad_loss, count, rows, ignored, inner, stride, outer,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, MEAN: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Gradients of the sum of the losses, as those of the loss: rows of tokens, or of the weight if target is None."""
    await_predecessor(DEPENDENT)
    BLOCKS: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    WHOLE: tl.constexpr = WIDTH % BLOCK == 0
    row = (tl.program_id(0) // BLOCKS).to(tl.int64)
    columns = tl.program_id(0) % BLOCKS * BLOCK + tl.arange(0, BLOCK)
    if target is None:
        factor = factor_of(0, grad_loss, count, MEAN)
        live = tl.load(count) > 0
    else:
        factor = factor_of(row, grad_loss, count, MEAN)
        live = tl.load(target + row) != ignored
    grad = tl.zeros([BLOCK], tl.float32)
    if live:
        values = load_tile(given + row_starts(row, inner, stride, outer, WIDTH) + columns, columns < WIDTH, WHOLE, "")
        grad = values.to(tl.float32) * factor
    store_tile(grads + row * WIDTH + columns, rounded(grad, grads.dtype.element_ty), columns < WIDTH, WHOLE)
