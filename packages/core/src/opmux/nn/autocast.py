"""What autocast asks of a matrix product; the ops themselves compute in the dtypes of their arguments."""

import torch
from torch import Tensor


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """The dtype that autocast has for x's device; None where it is off, or x is of a dtype that it leaves alone."""
    kind = x.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind) if x.dtype.is_floating_point and x.dtype is not torch.float64 else None
