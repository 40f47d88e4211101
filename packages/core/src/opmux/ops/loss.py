"""Cross entropy over a vocabulary, with its log-sum-exp and its gradient.

All arithmetic is in float32 (float64 for float64 tensors). Losses stay in that dtype; gradients are rounded once.
"""

from typing import Any, Literal

from torch import Tensor

from opmux.declared.caveats import Caveat
from opmux.definition import Accumulated, define_op
from opmux.dtypes import Int64, Real, Statistic, accumulation_dtype
from opmux.ops._token_losses import REQUIRED, TokenLoss, check_targets
from opmux.ops._variants import variant


def _check(op: str) -> Any:
    """The check of the targets under the name of an op."""

    def check(*, logits: Tensor, target: Tensor, ignore_index: int, **_: object) -> None:
        check_targets(op, target, ignore_index, logits.shape[-1])

    return check


@define_op(
    outputs=("loss",),
    out_dtype={"loss": Accumulated("logits")},
    reduced={"loss": "reduction"},
    require=REQUIRED,
    gradient="cross_entropy_backward",
    gradient_through="cross_entropy_lse",
    check_data=_check("cross_entropy"),
    capturable=False,
    caveats=(Caveat.NONFINITE_KIND,),
)
def cross_entropy(
    logits: Real[Tensor, "*tokens vocab"],
    target: Int64[Tensor, "*tokens"],
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
) -> Statistic[Tensor, "*tokens"]:
    """Compute the cross entropy of logits and target classes.

    With ``c = softcap * tanh(logits / softcap)`` (``c = logits`` where softcap is 0) and
    ``lse = log(sum over classes of exp(c))``, the loss of a token is
    ``(1 - label_smoothing) * (lse - c[target]) + label_smoothing * (lse - mean(c)) + z_loss * lse**2``,
    computed in float32 (in float64 for float64) and returned in that dtype. Terms with a factor of 0 are left out.

    A token whose target is ignore_index adds nothing: its loss is 0, its logits are not used, and its gradient is
    zero, whatever they hold. The mean is that of the other tokens, and NaN if there is none, as in torch; the
    gradient is zero then.

    The reference reads the targets, and so synchronises.

    Args:
        logits: The logits, ``(*tokens, vocab)``.
        target: The class of each token, ``(*tokens,)`` int64, from 0 to ``vocab - 1``, or ignore_index. Anything else
            is an error that the reference and ``opmux.policy.check()`` report; other backends read nothing outside of
            logits, and give an unspecified loss.
        ignore_index: The target of tokens to leave out.
        label_smoothing: The share of the uniform distribution in the target distribution, from 0 to 1.
        z_loss: The weight of the squared log-sum-exp, which keeps logits from drifting; 0 or more.
        softcap: The bound of capped logits, 0 for no cap.
        reduction: ``"mean"`` over the tokens that are not ignored, ``"sum"``, or ``"none"`` for a loss of each token.

    Returns:
        loss: ``()``, or ``(*tokens,)`` for reduction ``"none"``; float32 (float64 for float64 logits).

    Raises:
        InvalidArgument: If a shape, dtype or device breaks the signature, there is no class, label_smoothing is not
            between 0 and 1, z_loss or softcap is negative, or a target is no class.

    Source:
        `torch.nn.functional.cross_entropy`; label smoothing: Szegedy et al., 2015, https://arxiv.org/abs/1512.00567;
        z-loss: Chowdhery et al., "PaLM", 2022, section 5, https://arxiv.org/abs/2204.02311.
    """
    check_targets("cross_entropy", target, ignore_index, logits.shape[-1])
    token = TokenLoss(ignore_index, label_smoothing, z_loss, softcap)
    losses, _ = token.losses(logits.to(accumulation_dtype(logits.dtype)), target)
    return token.reduced(losses, target, reduction)


@variant(
    cross_entropy,
    outputs=("loss", "lse"),
    out_dtype={"loss": Accumulated("logits"), "lse": Accumulated("logits")},
    reduced={"loss": "reduction"},
    gradient="cross_entropy_backward",
    check_data=_check("cross_entropy_lse"),
)
def cross_entropy_lse(
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    softcap: float,
    reduction: str,
) -> tuple[Statistic[Tensor, "*tokens"], Statistic[Tensor, "*tokens"]]:
    """Compute the cross entropy, and the log-sum-exp of each token's logits.

    `cross_entropy` runs as this op if a gradient is due.

    Returns:
        loss: As from `cross_entropy`.
        lse: The natural logarithm of the sum of exp(c) over the classes, ``(*tokens,)``, in loss's dtype; 0 for
            ignored tokens.

    Raises:
        InvalidArgument: As for `cross_entropy`.

    Source:
        As for `cross_entropy`.
    """
    check_targets("cross_entropy_lse", target, ignore_index, logits.shape[-1])
    token = TokenLoss(ignore_index, label_smoothing, z_loss, softcap)
    losses, lse = token.losses(logits.to(accumulation_dtype(logits.dtype)), target)
    loss = token.reduced(losses, target, reduction)
    return loss, lse


@define_op(
    outputs=("grad_logits",),
    out_dtype={"grad_logits": "logits"},
    same_dtype=(("grad_loss", "lse", "grad_lse"),),
    require=REQUIRED,
    check_data=_check("cross_entropy_backward"),
    capturable=False,
    caveats=(Caveat.NONFINITE_KIND,),
)
def cross_entropy_backward(
    grad_loss: Statistic[Tensor, "*tokens"],
    logits: Real[Tensor, "*tokens vocab"],
    target: Int64[Tensor, "*tokens"],
    lse: Statistic[Tensor, "*tokens"],
    grad_lse: Statistic[Tensor, "*tokens"] | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
    output_mask: tuple[bool, ...] = (True,),
) -> Real[Tensor, "*tokens vocab"]:
    """Compute the gradient of `cross_entropy` and of `cross_entropy_lse`.

    With c and lse as in `cross_entropy`, ``p = exp(c - lse)`` and g the gradient of the token's own loss (grad_loss,
    for ``"mean"`` divided by the number of tokens that are not ignored):
    ``(g * (p * (1 + 2 * z_loss * lse) - (1 - label_smoothing) * [class is target] - label_smoothing / vocab)
    + grad_lse * p) * (1 - (c / softcap)**2)``, the last factor only with a softcap. It is computed in float32 (in
    float64 for float64) and rounded once; zero for ignored tokens.

    Args:
        grad_loss: The gradient of the loss, for each token, ``(*tokens,)``: where the loss is one number, the
            gradient of that number at every token. Float32 (float64 for float64 logits).
        logits: The logits given to `cross_entropy`, ``(*tokens, vocab)``.
        target: The targets given to `cross_entropy`, ``(*tokens,)``.
        lse: What `cross_entropy_lse` returned, ``(*tokens,)``, in grad_loss's dtype.
        grad_lse: The gradient of lse, ``(*tokens,)``, in grad_loss's dtype; None is zero.
        ignore_index: As given to `cross_entropy`.
        label_smoothing: As given to `cross_entropy`.
        z_loss: As given to `cross_entropy`.
        softcap: As given to `cross_entropy`.
        reduction: As given to `cross_entropy`.
        output_mask: Whether grad_logits is wanted.

    Returns:
        grad_logits: ``(*tokens, vocab)`` in logits' dtype; ``(0,)`` where masked out.

    Raises:
        InvalidArgument: As for `cross_entropy`.

    Source:
        The chain rule on `cross_entropy_lse`.
    """
    if not output_mask[0]:
        return logits.new_empty(0)
    check_targets("cross_entropy_backward", target, ignore_index, logits.shape[-1])
    token = TokenLoss(ignore_index, label_smoothing, z_loss, softcap)
    acc = accumulation_dtype(logits.dtype)
    grad = token.of_each_token(grad_loss.to(acc), target, reduction)
    of_lse = None if grad_lse is None else grad_lse.to(acc)
    return token.grad_logits(logits.to(acc), target, lse.to(acc), grad, of_lse).to(logits.dtype).contiguous()
