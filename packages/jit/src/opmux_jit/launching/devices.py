"""A GPU of this machine, and the driver's library that it is reached through."""

import functools
from typing import Any

import torch

from opmux_jit.errors import LoadFailed
from opmux_jit.native import build
from opmux_jit.native.library import launcher

LIBRARIES = {"nvidia": ("libcuda.so.1",), "amd": ("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6")}
"""By vendor, the library's name; those that are tried in turn."""


@functools.cache
def driver(vendor: str) -> Any:
    """The vendor's driver, opened and initialised.

    Raises:
        LoadFailed: where the launcher cannot be built, or no library can be opened.
    """
    try:
        native = launcher()
    except (build.BuildError, ImportError, OSError) as error:
        raise LoadFailed(f"launcher: {error}") from None
    reasons = []
    for name in LIBRARIES[vendor]:
        try:
            return native.Driver(vendor, name)
        except native.DriverError as error:
            reasons.append(str(error.args[0]))
    raise LoadFailed(f"launcher: no driver for {vendor}'s GPUs: {'; '.join(reasons)}")


class Device:
    """A GPU by its index.

    Attributes:
        index: torch's index of it.
        vendor: ``nvidia`` or ``amd``.
        driver: the native object.
    """

    def __init__(self, index: int, vendor: str) -> None:
        self.index, self.vendor = index, vendor
        self.driver = driver(vendor)

    @property
    def driver_version(self) -> str:
        """The newest toolkit that the driver supports, ``13.0``; for AMD the version of HIP."""
        number = self.driver.version()
        scale = 1000 if self.vendor == "nvidia" else 10_000_000
        return f"{number // scale}.{number % scale // (scale // 100)}"

    def stream(self) -> int:
        """torch's current stream of this device."""
        return int(current_stream(self.index))


def current_stream(index: int) -> int:
    """The address of torch's current stream of a device."""
    return int(torch._C._cuda_getCurrentRawStream(index))


@functools.cache
def device(index: int, vendor: str | None = None) -> Device:
    """A GPU of this machine.

    Args:
        index: torch's index.
        vendor: ``nvidia`` or ``amd``; None takes that of the installed torch.

    Raises:
        LoadFailed: where there is no driver.
    """
    return Device(index, vendor or ("amd" if torch.version.hip else "nvidia"))
