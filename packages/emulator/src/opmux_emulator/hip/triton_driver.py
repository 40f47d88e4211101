"""Triton's own AMD driver on the emulator: ``kernel[grid](...)`` with tensors of the CPU."""

import ctypes
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from opmux_emulator.hip.library import library, settings
from opmux_emulator.hip.runtime import HipError, Runtime

ALREADY_REGISTERED = 712


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

    Afterwards, and where one is left within another, the library plays what it played before.

    Raises:
        EmulatorError: settings that are wrong.
        RuntimeError: Triton's, where its driver cannot be built (it needs a C compiler and Python's headers); where a
            kernel breaks a rule, a launch raises it, with the judgements.
    """
    from triton.runtime import driver

    hip = Runtime()
    from triton.backends.amd.driver import HIPDriver, HIPLauncher

    class Launcher(HIPLauncher):  # type: ignore[misc]
        def __call__(self, *arguments: Any) -> None:
            with registered(hip, arguments):
                try:
                    super().__call__(*arguments)
                except SystemError as error:  # Triton calls its exit hook with the launch's exception pending
                    raise error.__cause__ or error from None

    device = Device(0)
    device.arch = arch
    with played(hip, settings(arch, **options)):
        before = driver._active
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
def played(hip: Runtime, wanted: str) -> Iterator[None]:
    """Have the library play ``wanted``, and Triton open that library; afterwards both are as they were before.

    Raises:
        HipError: the library refuses the settings.
    """
    hip.lib.opmuxHipSettings.restype = ctypes.c_char_p
    before = hip.lib.opmuxHipSettings()
    variables = {name: os.environ.get(name) for name in ("TRITON_LIBHIP_PATH", "OPMUX_HIP")}
    hip.call("opmuxHipPlay", wanted.encode())
    os.environ.update(TRITON_LIBHIP_PATH=str(library()), OPMUX_HIP=wanted)
    try:
        yield
    finally:
        hip.call("opmuxHipPlay", before)
        for name, value in variables.items():  # through os.environ, which also sets what the library's setenv changed
            if value is not None:
                os.environ[name] = value
            else:
                os.environ.pop(name, None)


@contextmanager
def registered(hip: Runtime, arguments: tuple[Any, ...]) -> Iterator[None]:
    """Register the storages of tensors, also of those within tuples, while the body runs.

    Storages that overlap are registered as one range. What the caller has registered stays the caller's.

    Raises:
        HipError: a storage cannot be registered.
    """
    found: dict[int, int] = {}

    def visit(value: Any) -> None:
        if isinstance(value, tuple):
            for part in value:
                visit(part)
        elif hasattr(value, "untyped_storage"):
            storage = value.untyped_storage()
            if storage.nbytes():
                address = storage.data_ptr()
                found[address] = max(found.get(address, 0), storage.nbytes())

    visit(arguments)
    ours = []
    try:
        for address, size in merged(found.items()):
            try:
                hip.call("hipHostRegister", ctypes.c_void_p(address), ctypes.c_size_t(size), 0)
            except HipError as error:
                if error.code != ALREADY_REGISTERED:
                    raise
                hip.lib.hipGetLastError()
            else:
                ours.append(address)
        yield
    finally:
        for address in ours:
            hip.call("hipHostUnregister", ctypes.c_void_p(address))


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges of address and size in order, those that overlap as one."""
    found: list[tuple[int, int]] = []
    for address, size in sorted(ranges):
        if found and address < sum(found[-1]):
            first, known = found[-1]
            found[-1] = (first, max(known, address + size - first))
        else:
            found.append((address, size))
    return found
