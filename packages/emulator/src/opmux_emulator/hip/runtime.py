"""HIP's calls from Python, by ctypes: for tests, and for trying a code object without a compiler."""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opmux_emulator.errors import EmulatorError
from opmux_emulator.hip.library import library

OLDEST = 60000000
"""The oldest HIP whose interface is understood: 6.0, as ``hipRuntimeGetVersion`` counts."""
NEEDED = (
    "hipRuntimeGetVersion", "hipGetDeviceCount", "hipGetDevicePropertiesR0600", "hipMalloc", "hipFree", "hipMemcpy",
    "hipMemset", "hipModuleLoadData", "hipModuleUnload", "hipModuleGetFunction", "hipModuleLaunchKernel",
    "hipDeviceSynchronize", "hipGetErrorName", "hipGetErrorString",
)  # fmt: skip
TO_DEVICE, FROM_DEVICE = 1, 2
BUFFER, BUFFER_SIZE, END = 1, 2, 3
PROPERTIES_SIZE, ARCH_AT = 1472, 1160


class HipLibraryError(EmulatorError):
    """No HIP library, one that is no HIP library, or one that is too old."""


class HipError(EmulatorError):
    """A HIP call failed: ``code`` is its error."""

    def __init__(self, call: str, code: int, name: str, text: str) -> None:
        super().__init__(f"{call}: {name} ({code}): {text}")
        self.code = code


class Runtime:
    """An opened HIP library: the emulator's, or that of a ROCm installation.

    Args:
        path: the library; None for the emulator's.

    Raises:
        HipLibraryError: it cannot be opened, lacks a function that is needed, or is older than HIP 6.0.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        path = path or library()
        try:
            self.lib = ctypes.CDLL(str(path))
        except OSError as error:
            raise HipLibraryError(f"HIP: {path} cannot be opened: {error}") from None
        for name in NEEDED:
            if not hasattr(self.lib, name):
                raise HipLibraryError(f"HIP: {path} has no {name}: expected libamdhip64.so of HIP 6.0 or newer")
        self.lib.hipGetErrorName.restype = self.lib.hipGetErrorString.restype = ctypes.c_char_p
        version = ctypes.c_int()
        self.call("hipRuntimeGetVersion", ctypes.byref(version))
        if version.value < OLDEST:
            shown = f"{version.value // 10000000}.{version.value // 100000 % 100}"
            raise HipLibraryError(f"HIP: {path} is version {shown}: expected 6.0 or newer")
        self.version = version.value

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that returns an error code.

        Raises:
            HipError: the code is not ``hipSuccess``.
        """
        code = getattr(self.lib, name)(*arguments)
        if code:
            word, text = (self.lib.hipGetErrorName(code), self.lib.hipGetErrorString(code))
            raise HipError(name, code, word.decode(), text.decode("utf-8", "replace"))

    @property
    def arch(self) -> str:
        """The arch of device 0, with its features: ``gfx942:sramecc+:xnack-``."""
        properties = ctypes.create_string_buffer(PROPERTIES_SIZE)
        self.call("hipGetDevicePropertiesR0600", properties, 0)
        return properties.raw[ARCH_AT:].split(b"\0", 1)[0].decode()

    def allocate(self, size: int) -> int:
        """Device memory of so many bytes; its address."""
        address = ctypes.c_void_p()
        self.call("hipMalloc", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value or 0

    def free(self, address: int) -> None:
        self.call("hipFree", ctypes.c_void_p(address))

    def upload(self, array: npt.NDArray[Any]) -> int:
        """A copy of an array in new device memory; its address."""
        whole = np.ascontiguousarray(array)
        address = self.allocate(whole.nbytes)
        self.copy(address, whole.ctypes.data, whole.nbytes, TO_DEVICE)
        return address

    def download(self, address: int, into: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Copy device memory into a contiguous array, and return that."""
        self.copy(into.ctypes.data, address, into.nbytes, FROM_DEVICE)
        return into

    def copy(self, to: int, source: int, size: int, kind: int) -> None:
        self.call("hipMemcpy", ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(size), kind)

    def load(self, code: bytes) -> int:
        """A module of a code object or a bundle; its handle."""
        module = ctypes.c_void_p()
        self.call("hipModuleLoadData", ctypes.byref(module), code)
        return module.value or 0

    def function(self, module: int, name: str) -> int:
        """A kernel of a module; its handle."""
        function = ctypes.c_void_p()
        self.call("hipModuleGetFunction", ctypes.byref(function), ctypes.c_void_p(module), name.encode())
        return function.value or 0

    def launch(
        self,
        function: int,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: bytes,
        shared: int = 0,
        stream: int = 0,
    ) -> None:
        """Launch a kernel with its explicit arguments as they lie in memory.

        Args:
            function: the handle of a kernel.
            grid: workgroups in x, y, z; missing ones are 1.
            block: threads of a workgroup in x, y, z; missing ones are 1.
            arguments: the bytes of the arguments, each at its own alignment.
            shared: bytes of dynamic LDS.
            stream: the handle of a stream; 0 for the default one.
        """
        size = ctypes.c_size_t(len(arguments))
        buffer = ctypes.create_string_buffer(arguments, max(len(arguments), 1))
        extra = (ctypes.c_void_p * 5)(
            BUFFER, ctypes.addressof(buffer), BUFFER_SIZE, ctypes.addressof(size), END
        )  # fmt: skip
        sizes = [*(*grid, 1, 1)[:3], *(*block, 1, 1)[:3], shared]
        self.call(
            "hipModuleLaunchKernel", ctypes.c_void_p(function), *map(ctypes.c_uint, sizes), ctypes.c_void_p(stream),
            None, extra,
        )  # fmt: skip

    def synchronize(self) -> None:
        self.call("hipDeviceSynchronize")
