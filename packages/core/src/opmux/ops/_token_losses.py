"""The loss of one token, given its logits, and the gradient of it: what the ops of `opmux.ops.loss` have in common."""

from dataclasses import dataclass

import torch
from torch import Tensor

from opmux.errors import invalid

REQUIRED = (
    ("vocab > 0", "there is at least one class"),
    ("0 <= label_smoothing <= 1", "label_smoothing is the share of the uniform distribution, between 0 and 1"),
    ("z_loss >= 0", "z_loss is the weight of a penalty, so it is 0 or more"),
    ("softcap >= 0", "softcap is the bound of capped logits, or 0 for no cap"),
)


@dataclass(frozen=True)
class TokenLoss:
    """The loss of a token: its options.

    Attributes:
        ignore_index: the target of tokens that add nothing.
        label_smoothing: the share of the uniform distribution in the target distribution.
        z_loss: the weight of the squared log-sum-exp.
        softcap: logits are bounded by this; 0 for no bound.
    """

    ignore_index: int
    label_smoothing: float
    z_loss: float
    softcap: float

    def kept(self, target: Tensor) -> Tensor:
        """Which tokens are not ignored."""
        return target != self.ignore_index

    def losses(self, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """The loss and the log-sum-exp of each token; both are 0 for ignored ones.

        Args:
            logits: ``(*tokens, vocab)`` in the accumulation dtype.
            target: the classes, ``(*tokens,)``.
        """
        kept = self.kept(target)
        capped = self._capped(logits)
        lse = torch.logsumexp(capped, dim=-1)
        loss = lse - capped.gather(-1, torch.where(kept, target, 0).unsqueeze(-1)).squeeze(-1)
        if self.label_smoothing:
            uniform = lse - capped.mean(dim=-1)
            loss = (1.0 - self.label_smoothing) * loss + self.label_smoothing * uniform
        if self.z_loss:
            loss = loss + self.z_loss * lse.square()
        return torch.where(kept, loss, 0.0).contiguous(), torch.where(kept, lse, 0.0).contiguous()

    def grad_logits(
        self, logits: Tensor, target: Tensor, lse: Tensor, grad_loss: Tensor, grad_lse: Tensor | None = None
    ) -> Tensor:
        """The gradient of the logits, given those of each token's loss and log-sum-exp; zero for ignored tokens.

        Args:
            logits: ``(*tokens, vocab)`` in the accumulation dtype.
            target: the classes, ``(*tokens,)``.
            lse: the log-sum-exp of each token, ``(*tokens,)``.
            grad_loss: the gradient of each token's loss, ``(*tokens,)``.
            grad_lse: the gradient of each token's log-sum-exp, ``(*tokens,)``; None is zero.
        """
        kept = self.kept(target)
        capped = self._capped(logits)
        shares = torch.exp(capped - lse.unsqueeze(-1))
        grad = shares * (1.0 + 2.0 * self.z_loss * lse).unsqueeze(-1) if self.z_loss else shares.clone()
        if self.label_smoothing:
            grad = grad - self.label_smoothing / logits.shape[-1]
        at_target = torch.where(kept, target, 0).unsqueeze(-1)
        grad.scatter_add_(-1, at_target, grad.new_full(at_target.shape, self.label_smoothing - 1.0))
        grad = grad * grad_loss.unsqueeze(-1)
        if grad_lse is not None:
            grad = grad + shares * grad_lse.unsqueeze(-1)
        if self.softcap:
            grad = grad * (1.0 - (capped / self.softcap).square())
        return torch.where(kept.unsqueeze(-1), grad, 0.0)

    def of_each_token(self, grad_loss: Tensor, target: Tensor, reduction: str) -> Tensor:
        """The gradient of each token's own loss, given that of the reduced loss for each token; 0 for ignored ones."""
        kept = self.kept(target)
        return torch.where(kept, grad_loss / kept.sum() if reduction == "mean" else grad_loss, 0.0)

    def reduced(self, losses: Tensor, target: Tensor, reduction: str) -> Tensor:
        """The losses of tokens, reduced; the mean is that of the tokens that are not ignored, NaN if there is none."""
        if reduction == "none":
            return losses
        return losses.sum() / self.kept(target).sum() if reduction == "mean" else losses.sum()

    def _capped(self, logits: Tensor) -> Tensor:
        return self.softcap * torch.tanh(logits / self.softcap) if self.softcap else logits


def check_targets(op: str, target: Tensor, ignore_index: int, vocab: int) -> None:
    """Raise if a target is no class and not ignored; reads target, and so synchronises.

    Raises:
        InvalidArgument: names the first such target and where it is.
    """
    flat = target.reshape(-1)
    outside = ((flat < 0) | (flat >= vocab)) & (flat != ignore_index)
    if not bool(outside.any()):
        return
    index = int(outside.nonzero()[0])
    expected = f"a class below vocab = {vocab}, or ignore_index = {ignore_index}, for token {index}"
    remedy = "check the tokenizer against the size of the vocabulary, or pass ignore_index="
    raise invalid(op, "target", expected, str(int(flat[index])), remedy)
