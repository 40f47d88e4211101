"""What the host code asks of a tensor's device."""

import functools

import torch
from torch import Tensor

from opmux_triton.launch import recorded_arch

_UNITS = {"gfx90a": 104, "gfx942": 304, "gfx950": 256, "sm_80": 108, "sm_90": 132, "sm_100": 148}
"""Multiprocessors (NVIDIA) or compute units (AMD) of the usual product: used where no device is there to be asked."""


def units(tensor: Tensor) -> int:
    """How many multiprocessors or compute units the tensor's device has; 4 for the interpreter."""
    arch = recorded_arch()
    if arch is not None:
        return _UNITS.get(arch, 64)
    return _units_of(tensor.get_device()) if tensor.is_cuda else 4


@functools.cache
def _units_of(index: int) -> int:
    return torch.cuda.get_device_properties(index).multi_processor_count
