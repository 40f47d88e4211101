"""Facts of a tensor's device that the host code needs."""

import functools

import torch
from torch import Tensor

from opmux.plugin import device_arch, parse_arch
from opmux_triton.archs import fp8_flavour, usual_units
from opmux_triton.launch import recorded_arch


def units(tensor: Tensor) -> int:
    """How many multiprocessors or compute units the tensor's device has; 4 for the interpreter."""
    arch = recorded_arch()
    if arch is not None:
        return usual_units(arch)
    return _units_of(tensor.get_device()) if tensor.is_cuda else 4


def converts_pairs(tensor: Tensor) -> bool:
    """Whether the tensor's device has NVIDIA's instructions that convert two 8-bit floats, as from sm_89 on."""
    name = recorded_arch()
    if name is None and not tensor.is_cuda:
        return False
    arch = device_arch("cuda", tensor.get_device()) if name is None else parse_arch(name)
    return arch.vendor == "nvidia" and arch.number >= (8, 9)


@functools.cache
def _units_of(index: int) -> int:
    return torch.cuda.get_device_properties(index).multi_processor_count


def is_native(tensor: Tensor) -> bool:
    """Whether the instructions of a tensor's device know its dtype, an 8-bit float; never under the interpreter."""
    recorded = recorded_arch()
    if recorded is None and not tensor.is_cuda:
        return False
    flavour = fp8_flavour(parse_arch(recorded) if recorded is not None else device_arch("cuda", tensor.get_device()))
    return flavour == ("fnuz" if str(tensor.dtype).endswith("fnuz") else "ocp")
