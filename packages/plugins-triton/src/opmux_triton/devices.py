"""Facts of a tensor's device that the host code needs."""

import functools

import torch
from torch import Tensor

from opmux_triton.archs import usual_units
from opmux_triton.launch import recorded_arch


def units(tensor: Tensor) -> int:
    """How many multiprocessors or compute units the tensor's device has; 4 for the interpreter."""
    arch = recorded_arch()
    if arch is not None:
        return usual_units(arch)
    return _units_of(tensor.get_device()) if tensor.is_cuda else 4


@functools.cache
def _units_of(index: int) -> int:
    return torch.cuda.get_device_properties(index).multi_processor_count
