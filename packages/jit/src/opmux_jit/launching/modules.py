"""Machine code that is loaded on a device, and the kernels in it."""

from collections.abc import Mapping
from typing import Any

import torch

from opmux_jit.cache.entry import Entry
from opmux_jit.compilers import tile
from opmux_jit.errors import LoadFailed
from opmux_jit.launching.devices import Device
from opmux_jit.native.library import launcher

OUT_OF_MEMORY = 2
"""The drivers' code for too little memory on the device: no kernel's fault, so the core does not fall back."""

TOO_NEW = {"nvidia": (200, 209, 218, 222), "amd": (200, 209)}
"""The drivers' codes for machine code that they cannot load: invalid image, no binary for this GPU, invalid or
unsupported PTX."""

ATTRIBUTES: Mapping[str, int] = {
    "max_threads_per_block": 0,
    "static_shared_bytes": 1,
    "constant_bytes": 2,
    "local_bytes": 3,
    "registers": 4,
    "dynamic_shared_bytes": 8,
    "shared_carveout": 9,
}
"""Attributes of kernels and their numbers, which CUDA and HIP share (``CUfunction_attribute``)."""


def failure(name: str, error: Exception, text: str) -> Exception:
    """What to raise for an error of the driver: `text` as a `LoadFailed`, unless the device is out of memory."""
    said, number = error.args
    return torch.OutOfMemoryError(f"{name}: {said}") if number == OUT_OF_MEMORY else LoadFailed(text)


class Module:
    """Machine code on a device.

    It stays loaded until the process ends or `unload` is called, even if nothing refers to it any more: a CUDA graph
    that was captured may still launch its kernels, and refers to no object of Python.
    """

    def __init__(self, code: Entry | bytes, device: Device) -> None:
        """Load verified machine code.

        Args:
            code: an entry of the cache, or a cubin or code object.
            device: where to.

        Raises:
            LoadFailed: where the driver refuses it; the message says whether it is too old for it.
            torch.OutOfMemoryError: where the device has too little memory.
        """
        image = code.code if isinstance(code, Entry) else code
        self.device, self.name = device, code.source.name if isinstance(code, Entry) else "machine code"
        native = launcher()
        try:
            self.handle: int = native.load(device.driver, device.index, image)
        except native.DriverError as error:
            raise failure(self.name, error, self._refused(code, *error.args)) from None

    def _refused(self, code: Entry | bytes, said: str, number: int) -> str:
        text = f"{self.name}: the driver does not load it on device {self.device.index}: {said}"
        if number not in TOO_NEW[self.device.vendor]:
            return text
        lines = [text, f"  driver:    {self.device.driver.library}, for toolkits up to {self.device.driver_version}"]
        packages = '"nvidia-cuda-nvrtc==X"'
        if isinstance(code, Entry):
            lines.append(f"  code:      for {code.source.arch}, by {code.compiler}")
            if code.source.language == tile.NAME:
                packages = " ".join(f'"{part}==X"' for part in tile.PARTS)
        lines.append(
            "  try:       update the driver, or compile with a toolkit that is no newer than it "
            f"(pip install {packages}), or for this GPU's own arch"
            if self.device.vendor == "nvidia"
            else "  try:       compile for this GPU's own arch, or update ROCm"
        )
        return "\n".join(lines)

    def unload(self) -> None:
        """Unload the code. Nothing may launch its kernels any more: neither this process's code nor a captured graph.

        Raises:
            LoadFailed: where the driver refuses it.
        """
        if not self.handle:
            return
        native = launcher()
        try:
            native.unload(self.device.driver, self.device.index, self.handle)
        except native.DriverError as error:
            raise failure(self.name, error, f"{self.name}: {error.args[0]}") from None
        self.handle = 0

    def function(self, name: str) -> "Function":
        """A kernel of the module.

        Raises:
            LoadFailed: where it has no such kernel.
        """
        native = launcher()
        try:
            return Function(self, name, native.function(self.device.driver, self.device.index, self.handle, name))
        except native.DriverError as error:
            remedy = 'declare it extern "C" __global__'
            text = f"{self.name}: it has no kernel {name!r} ({error.args[0]}); {remedy}"
            raise failure(self.name, error, text) from None

    def variable(self, name: str) -> tuple[int, int]:
        """The address and size in bytes of a ``__device__`` or ``__constant__`` variable.

        Raises:
            LoadFailed: where it has no such variable.
        """
        native = launcher()
        try:
            found = native.global_(self.device.driver, self.device.index, self.handle, name)
        except native.DriverError as error:
            raise failure(self.name, error, f"{self.name}: it has no variable {name!r} ({error.args[0]})") from None
        return int(found[0]), int(found[1])


class Function:
    """A kernel on a device.

    Attributes:
        module: keeps the code loaded.
        handle: the driver's handle.
    """

    def __init__(self, module: Module, name: str, handle: int) -> None:
        self.module, self.name, self.handle = module, name, handle

    def attribute(self, name: str) -> int:
        """An attribute by name, see `ATTRIBUTES`.

        Raises:
            KeyError: where there is none of this name.
            LoadFailed: where the driver refuses it.
        """
        return int(self._asked("get_attribute", ATTRIBUTES[name]))

    def set_attribute(self, name: str, value: int) -> None:
        """Set an attribute, as ``dynamic_shared_bytes`` for more shared memory than 48 KB.

        Raises:
            KeyError: where there is none of this name.
            LoadFailed: where the driver refuses it.
        """
        self._asked("set_attribute", ATTRIBUTES[name], value)

    def _asked(self, call: str, *arguments: int) -> Any:
        native, device = launcher(), self.module.device
        try:
            return getattr(native, call)(device.driver, device.index, self.handle, *arguments)
        except native.DriverError as error:
            raise failure(self.name, error, f"{self.name}: {error.args[0]}") from None
