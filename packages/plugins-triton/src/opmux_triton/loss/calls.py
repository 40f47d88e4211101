"""The options of a loss as its kernels take them."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from opmux_triton.launch import launch
from opmux_triton.loss import kernels

_REDUCED_AT_A_TIME = 1024


class Loss(NamedTuple):
    """The options that every op of the family has."""

    ignore_index: int
    label_smoothing: float
    z_loss: float
    softcap: float

    @property
    def numbers(self) -> tuple[int, float, float, float]:
        """The arguments of a kernel."""
        return self.ignore_index, self.label_smoothing, self.z_loss, self.softcap

    @property
    def flags(self) -> dict[str, bool]:
        """The constants of a kernel: which terms there are; one with a factor of 0 is left out, as 0 * inf is NaN."""
        return {
            "CAPPED": self.softcap != 0.0,
            "SMOOTHED": self.label_smoothing != 0.0,
            "PENALISED": self.z_loss != 0.0,
        }


def loss_of(options: dict[str, Any]) -> Loss:
    """The options of a loss, taken out of those of a call."""
    return Loss(*(options.pop(name) for name in Loss._fields))


def flat(tensor: Tensor) -> Tensor:
    """What there is of each token, one after another."""
    return tensor.reshape(-1).contiguous()


def reduced(losses: Tensor, target: Tensor, loss: Loss, reduction: str) -> Tensor:
    """The losses of all tokens, ``(*tokens,)``, reduced; both tensors are dense."""
    if reduction == "none":
        return losses
    out = losses.new_empty(())
    _reduce(target, losses, out, None, loss, reduction == "mean")
    return out


def count_of(target: Tensor, loss: Loss) -> Tensor:
    """How many tokens are not ignored, as one int32 on the device; the target is dense."""
    count = target.new_empty((), dtype=torch.int32)
    _reduce(target, None, None, count, loss, False)
    return count


def _reduce(
    target: Tensor, losses: Tensor | None, out: Tensor | None, count: Tensor | None, loss: Loss, mean: bool
) -> None:
    meta = {"BLOCK": _REDUCED_AT_A_TIME, "MEAN": mean, "num_warps": 4}
    launch(kernels.reduce_losses, (1,), (target, losses, out, count, target.numel(), loss.ignore_index), meta)
