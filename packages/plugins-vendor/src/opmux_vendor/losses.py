"""Cross entropy by torch's own: a softmax of logits in the accumulation dtype, whole in memory."""

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    softcap: float,
    reduction: str,
) -> Tensor:
    """Compute ``opmux.cross_entropy``; the record admits no z-loss and no softcap.

    `torch.nn.functional.cross_entropy` rounds the loss to the logits' dtype, so 16-bit logits are converted first.
    """
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    rows = logits.to(wide).reshape(-1, logits.shape[-1])
    loss = F.cross_entropy(
        rows, target.reshape(-1), ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction
    )
    return loss.reshape(target.shape) if reduction == "none" else loss
