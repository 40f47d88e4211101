"""Bounds of cross entropies and their gradients.

A loss is a difference of numbers of the size of its logits, and inherits their roundings weighted by the gradient.
Where a linear layer makes 16-bit logits, these, and their gradient, may be rounded to 16 bits: noise, as it is for
attention's probabilities.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from opmux.testing.bounds import model
from opmux.testing.bounds.model import (
    OF_A_ROOT,
    ROUNDED_PROBABILITIES,
    Allowance,
    Given,
    averaged,
    derives,
    roundings,
    row_sums,
)

_NEVER = -1e30
"""A logit whose class has no share."""
_LARGEST_CHANGE = 8.0
"""Of an exponent: what is more changes no bound, and could overflow."""
_LEAST_OF_ONE = 0.6
"""By what the noise of a row of one token exceeds that of a long row at least."""
_EXPONENTIAL = 8.0  # exp, tanh or log, a product or two: two ulp each in the usual libraries


@dataclass(frozen=True)
class _Tokens:
    """The tokens of a call, with the absolute errors of what a kernel computes of them, in unit roundoffs.

    Attributes:
        kept: the tokens that are not ignored.
        shares: the softmax, 0 for ignored tokens.
        shares_error: its error, for exact logits.
        lse_error: the error of the log-sum-exp.
        losses: the loss of each token.
        losses_error: its error.
        slopes: the derivative of each token's loss by each logit.
        slopes_error: its error, for exact logits.
        curvature: the derivative of each slope by its own logit, at most.
        damping: the derivative of a capped logit; 1 without a cap.
        damping_error: its error.
    """

    kept: Tensor
    shares: Tensor
    shares_error: Tensor
    lse_error: Tensor
    losses: Tensor
    losses_error: Tensor
    slopes: Tensor
    slopes_error: Tensor
    curvature: Tensor
    damping: Tensor | float
    damping_error: Tensor | float


def _tokens(given: Given, logits: Tensor, lse: Tensor | None = None) -> _Tokens:
    options, target, vocab = given.options, given.tensors["target"], logits.shape[-1]
    smoothing, z, cap = options["label_smoothing"], options["z_loss"], options["softcap"]
    kept = target != options["ignore_index"]
    capped = cap * torch.tanh(logits / cap) if cap else logits
    damping: Tensor | float = 1 - (capped / cap).square() if cap else 1.0
    of_cap = _EXPONENTIAL * cap if cap else 0.0
    lse = torch.logsumexp(capped, -1) if lse is None else lse
    column = lse.unsqueeze(-1)
    highest = capped.amax(-1, keepdim=True)
    shares = torch.exp(capped - column) * kept.unsqueeze(-1)
    sums = roundings(vocab)
    lse_error = sums + _EXPONENTIAL + of_cap + 2 * (lse.abs() + highest.squeeze(-1).abs())
    lse_error = lse_error + 2 * (shares * (capped - highest).abs()).sum(-1)
    at_target = torch.nn.functional.one_hot(torch.where(kept, target, 0), vocab).to(logits.dtype)
    at_target = at_target * kept.unsqueeze(-1)
    picked, mean = (at_target * capped).sum(-1), capped.mean(-1)
    losses = lse - (1 - smoothing) * picked - smoothing * mean + z * lse.square()
    error = lse_error * (1 + 2 * z * lse.abs()) + 4 * z * lse.square() + of_cap + 4 * picked.abs()
    error = error + smoothing * sums * capped.abs().mean(-1) + 4 * losses.abs()
    # The rounding of an exponent is absolute, that of its exponential relative: of the two terms that are subtracted.
    relative = _EXPONENTIAL + of_cap + 4 * (capped.abs() + column.abs())
    flushed = torch.where(shares < 2 * given.smallest, given.smallest / given.unit, 0.0)
    shares_error = shares * relative + flushed
    factor = 1 + 2 * z * column
    raw = shares * factor - (1 - smoothing) * at_target - smoothing / vocab * kept.unsqueeze(-1)
    raw_error = shares_error * factor.abs() + 4 * (shares * factor.abs() + at_target + smoothing / vocab)
    bent = 2 * capped.abs() / cap**2 if cap else 0.0
    damping_error = bent * (of_cap + 4 * capped.abs()) + 4
    slopes_error = raw_error * damping + raw.abs() * damping_error
    curvature = (shares * (factor.abs() + 2 * z) * damping + raw.abs() * bent) * damping
    zero = torch.zeros((), dtype=logits.dtype, device=logits.device)
    return _Tokens(
        kept, shares, shares_error, torch.where(kept, lse_error, zero), torch.where(kept, losses, zero),
        torch.where(kept, error, zero), raw * damping, slopes_error, curvature, damping, damping_error,
    )  # fmt: skip


def _reduced(given: Given, values: Tensor, tokens: _Tokens, random: bool = False) -> Tensor:
    """An error of each token's loss, as one of the reduced loss; ``random`` ones add up in squares."""
    if given.options["reduction"] == "none":
        return values
    whole = values.square().sum().sqrt() if random and not model.repeated.get() else values.sum()
    if not random:
        whole = whole + roundings(values.numel()) * tokens.losses.abs().sum()
    return whole / tokens.kept.sum().clamp_min(1) if given.options["reduction"] == "mean" else whole


@derives("cross_entropy", "cross_entropy_lse")
def _cross_entropy(given: Given) -> list[Allowance]:
    tokens = _tokens(given, given["logits"])
    found = [Allowance(_reduced(given, tokens.losses_error, tokens)), Allowance(tokens.lse_error)]
    return found[: len(given.expected)]


def _of_each_token(given: Given) -> Tensor:
    """The gradient of each token's own loss."""
    grad = given["grad_loss"].abs()
    kept = given.tensors["target"] != given.options["ignore_index"]
    if given.options["reduction"] == "mean":
        grad = grad / kept.sum().clamp_min(1)
    return torch.where(kept, grad, 0.0)


@derives("cross_entropy_backward")
def _cross_entropy_backward(given: Given) -> list[Allowance]:
    if not given.wants(0):
        return [Allowance()]
    tokens = _tokens(given, given["logits"], given["lse"])
    magnitude = _of_each_token(given).unsqueeze(-1) * (tokens.slopes_error + 4 * tokens.slopes.abs())
    if given.tensors.get("grad_lse") is not None:
        of_lse = (tokens.shares_error + 4 * tokens.shares) * tokens.damping + tokens.shares * tokens.damping_error
        magnitude = magnitude + given["grad_lse"].abs().unsqueeze(-1) * of_lse
    return [Allowance(magnitude)]


@dataclass(frozen=True)
class _Linear:
    """The tokens of a linear layer, flat, with the errors of its logits."""

    x: Tensor
    weight: Tensor
    logits: Tensor
    logits_error: Tensor
    tokens: _Tokens


def _linear(given: Given) -> _Linear:
    x, weight = given["x"], given["weight"]
    logits = x @ weight.T
    if not (given.raw["x"].isfinite().all() and given.raw["weight"].isfinite().all()):
        # A class whose logit is -inf has no share: the others' are larger than without the infinity.
        logits = torch.where(given.raw["x"] @ given.raw["weight"].T == -math.inf, _NEVER, logits)
    error = roundings(x.shape[-1]) * (x.abs() @ weight.abs().T)
    tokens = _tokens(given, logits)
    return _Linear(x.reshape(-1, x.shape[-1]), weight, logits, error, tokens)


@derives("fused_linear_cross_entropy")
def _fused(given: Given) -> list[Allowance]:
    return [_fused_loss(given, _linear(given))]


def _fused_loss(given: Given, layer: _Linear) -> Allowance:
    slopes = layer.tokens.slopes.abs()
    magnitude = layer.tokens.losses_error + (slopes * layer.logits_error).sum(-1)
    root = (slopes * layer.logits).square().sum(-1).sqrt()
    noise = _reduced(given, 2.5 * root, layer.tokens, random=True) if given.sixteen else None
    return Allowance(_reduced(given, magnitude, layer.tokens), noise)


def _products(given: Given, layer: _Linear, factors: Tensor) -> tuple[Allowance, Allowance]:
    """The allowances of the gradients of x and weight, for these gradients of the tokens' losses."""
    tokens, vocab = layer.tokens, layer.weight.shape[0]
    count = layer.x.shape[0]
    column = factors.reshape(-1, 1)

    def flat(values: Tensor) -> Tensor:
        return values.reshape(count, vocab)

    slopes, shares, curvature = flat(tokens.slopes).abs(), flat(tokens.shares), flat(tokens.curvature)
    moved = flat(layer.logits_error)
    # A logit moves its own share, and all of them by way of the sum.
    error = flat(tokens.slopes_error) + curvature * (moved + row_sums(shares * moved))
    x, weight = layer.x.abs(), layer.weight.abs()
    of_x = (column * (error + roundings(vocab) * slopes)) @ weight
    of_weight = (column * (error + roundings(count) * slopes)).T @ x
    if not given.sixteen:
        return Allowance(of_x.reshape(given["x"].shape)), Allowance(of_weight)
    own = column.square() * ((curvature * flat(layer.logits)).square() + given.kept(slopes).square())
    common = row_sums((shares * flat(layer.logits)).square()).sqrt()
    root_x = (own @ weight.square()).sqrt() + column * common * (curvature @ layer.weight).abs()
    whole = own + (column * common * curvature).square()
    repeated = model.repeated.get()
    root_weight = whole.sqrt().T @ x if repeated else (whole.T @ x.square()).sqrt()
    sway = torch.expm1((ROUNDED_PROBABILITIES * (flat(layer.logits).abs() + common)).clamp(max=_LARGEST_CHANGE))
    largest = column * (curvature * sway / ROUNDED_PROBABILITIES + given.kept(slopes))
    along_rows = _along_rows(whole, largest, layer.x.shape[-1])
    noise_x = given.noise(root_x, root_x * 0)
    noise_weight = given.noise(root_weight, root_weight * 0)
    shape = given["x"].shape
    return (
        Allowance(of_x.reshape(shape), None if noise_x is None else noise_x.reshape(shape)),
        Allowance(of_weight, noise_weight, along_rows=along_rows),
    )


def _along_rows(squares: Tensor, largest: Tensor, hidden: int) -> Tensor:
    """By what the noise of a row of the weight's gradient exceeds that of independent errors.

    Row c of the gradient is the sum over tokens t of ``g[t, c] * x[t]``. An error of g[t, c] is one number for the
    whole row: nothing averages out along the row, only over the tokens that matter. Let u be the unit roundoff of
    bfloat16. An implementation that rounds as is allowed computes g from logits ``l + d`` with ``|d[t, c]| <= u *
    |l[t, c]|``. A share p, the exponential of a logit less the log-sum-exp, becomes ``p * exp(d[t, c] - D[t])``,
    where ``D[t]`` is about the mean of ``d[t]`` weighted by the shares: where one class has nearly all of them,
    ``|D[t]|`` reaches u times its logit; where many have, their errors cancel as the root of the squares says. Then g
    is rounded, by at most ``u * |g[t, c]|``. So the error of g is at most ``largest``: ``p * (exp(u * |l| + |D|) - 1)
    + u * |g|``. It is reached: where a logit lies half a step from what it is rounded to, and the largest logit half
    a step to the other side. Three errors of one size that add up are sqrt(3) times the root of their squares, and
    more by as much as the exponential is not linear; of a long row with independent errors ``averaged * OF_A_ROOT``
    of that root is allowed (0.7). Where n tokens matter alike, the mean of the squares of their errors differs from
    its expectation by a part of about ``1 / sqrt(n)``.

    Args:
        squares: the square of each token's noise in each row, ``(tokens, vocab)``.
        largest: the largest error of each, in unit roundoffs of bfloat16.
        hidden: the length of a row.
    """
    matter = squares.sum(0).square() / squares.square().sum(0).clamp_min(1e-300)
    of_root = (largest.square().sum(0) / squares.sum(0).clamp_min(1e-300)).sqrt()
    share = averaged(hidden)
    # A row whose elements are within their own bounds, of OF_A_ROOT, is within those bounds as a whole.
    of_one = (of_root / (share * OF_A_ROOT) - 1).clamp_min(_LEAST_OF_ONE).clamp_max(max(_LEAST_OF_ONE, 1 / share - 1))
    return 1 + of_one / matter.clamp_min(1.0).sqrt()


@derives("fused_linear_cross_entropy_gradients")
def _fused_gradients(given: Given) -> list[Allowance]:
    layer = _linear(given)
    ones = torch.ones(math.prod(given.tensors["target"].shape), dtype=torch.float64, device=given["x"].device)
    found = (_fused_loss(given, layer), *_products(given, layer, ones))
    return [allowance if given.wants(place) else Allowance() for place, allowance in enumerate(found)]


@derives("fused_linear_cross_entropy_backward")
def _fused_backward(given: Given) -> list[Allowance]:
    found = list(_products(given, _linear(given), _of_each_token(given)))
    for place, name in enumerate(("x_gradient", "weight_gradient")):
        if given.tensors.get(name) is not None:
            found[place] = Allowance(6 * given.expected[place].abs())
        if not given.wants(place):
            found[place] = Allowance()
    return found
