"""Loading machine code and launching kernels, through the native launcher."""

from opmux_jit.launching.devices import Device, device
from opmux_jit.launching.hosting import current_host, hosted
from opmux_jit.launching.kernel import Address, Kernel, MapOf, load
from opmux_jit.launching.modules import Function, Module
from opmux_jit.launching.tensor_maps import Fill, Promotion, Swizzle, tensor_map
from opmux_jit.native.library import is_built, launcher

API_VERSION = 1
"""What `launcher` takes and returns, for packages that call it; raised when that changes."""

__all__ = [
    "API_VERSION",
    "Address",
    "Device",
    "Fill",
    "Function",
    "Kernel",
    "MapOf",
    "Module",
    "Promotion",
    "Swizzle",
    "current_host",
    "device",
    "hosted",
    "is_built",
    "launcher",
    "load",
    "tensor_map",
]
