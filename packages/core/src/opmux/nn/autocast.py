"""The dtype that autocast requires for matrix products; the ops themselves compute in the dtypes of their arguments."""

import torch
from torch import Tensor


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """The autocast dtype of x's device; None if autocast is off, or does not apply to x's dtype.

    None also if x is no tensor: the op that gets it next refuses it.
    """
    if not isinstance(x, Tensor):
        return None
    kind = x.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind) if x.dtype.is_floating_point and x.dtype is not torch.float64 else None
