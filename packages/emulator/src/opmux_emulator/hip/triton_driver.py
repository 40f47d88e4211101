"""Triton's own AMD driver on the emulator: ``kernel[grid](...)`` with tensors of the CPU."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opmux_emulator.hip.library import library, settings


class Device(int):
    """Device 0. Triton keeps compiled kernels by device, so that of each arch is another key."""

    arch: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and other.arch == self.arch

    def __hash__(self) -> int:
        return hash(self.arch)


@contextmanager
def playing(arch: str = "gfx942", **options: Any) -> Iterator[Any]:
    """Within it, Triton compiles for ``arch`` and launches on the emulator; yields Triton's driver.

    The driver and its compiled launcher are Triton's. What it asks PyTorch for, the current device and stream, is
    answered here, since a PyTorch for the CPU has neither; and the storages of the tensors among a launch's arguments
    are registered with HIP while it runs, so that accesses outside them are judged.

    Args:
        arch: what the device plays.
        **options: as for :func:`opmux_emulator.hip.library.settings`.

    Raises:
        RuntimeError: Triton's, where its driver cannot be built (it needs a C compiler and Python's headers); where a
            kernel breaks a rule, a launch raises it, with the judgements.
    """
    from triton.runtime import driver

    path = str(library())
    os.environ["TRITON_LIBHIP_PATH"] = path
    hip = ctypes.CDLL(path)
    hip.opmuxHipPlay(settings(arch, **options).encode())
    from triton.backends.amd.driver import HIPDriver, HIPLauncher

    class Launcher(HIPLauncher):  # type: ignore[misc]
        def __call__(self, *arguments: Any) -> None:
            with registered(hip, arguments):
                try:
                    super().__call__(*arguments)
                except SystemError as error:  # Triton calls its exit hook with the launch's exception pending
                    raise error.__cause__ or error from None

    before = driver._active
    device = Device(0)
    device.arch = arch
    own: Any = HIPDriver()
    own.launcher_cls = Launcher
    own.get_current_device = lambda: device
    own.set_current_device = lambda device: None
    own.get_current_stream = lambda device: 0
    driver.set_active(own)
    try:
        yield own
    finally:
        driver.set_active(before)


@contextmanager
def registered(hip: ctypes.CDLL, arguments: tuple[Any, ...]) -> Iterator[None]:
    """Register the storages of tensors, also of those within tuples, while the body runs."""
    found: dict[int, int] = {}

    def visit(value: Any) -> None:
        if isinstance(value, tuple):
            for part in value:
                visit(part)
        elif hasattr(value, "untyped_storage"):
            storage = value.untyped_storage()
            if storage.nbytes():
                found[storage.data_ptr()] = storage.nbytes()

    visit(arguments)
    try:
        for address, size in found.items():
            hip.hipHostRegister(ctypes.c_void_p(address), ctypes.c_size_t(size), 0)
        yield
    finally:
        for address in found:
            hip.hipHostUnregister(ctypes.c_void_p(address))
