"""The kernels' short names of dtypes."""

import torch
from torch import Tensor

from opmux_asm.kernels.numbers import SUFFIXES

SHORT = {getattr(torch, name): short for short, name in SUFFIXES.items()}


def short(tensor: Tensor) -> str:
    """The short name of a tensor's dtype."""
    return SHORT[tensor.dtype]
