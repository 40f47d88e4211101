"""The kernel. It takes the op's own arguments; there is nothing to register, wrap or subclass."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, *, eps: float, weight_offset: float) -> Tensor:
    """RMS norm by torch's fused CPU kernel in float32, rounded once."""
    scale = weight.float() + weight_offset
    return torch.nn.functional.rms_norm(x.float(), (x.shape[-1],), scale, eps).to(x.dtype).contiguous()
