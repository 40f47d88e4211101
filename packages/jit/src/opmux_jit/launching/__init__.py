"""Loading machine code and launching kernels, through the native launcher."""

from opmux_jit.launching.devices import Device, device
from opmux_jit.launching.kernel import Kernel, load
from opmux_jit.launching.modules import Function, Module
from opmux_jit.launching.tensor_maps import Fill, Promotion, Swizzle, tensor_map

__all__ = [
    "Device",
    "Fill",
    "Function",
    "Kernel",
    "Module",
    "Promotion",
    "Swizzle",
    "device",
    "load",
    "tensor_map",
]
