"""Launches of the assembly backend on the emulator's HIP library: its ops run on CPU tensors as on an absent GPU.

``opmux conformance asm --profile emulator --within "opmux_emulator.asm_launches:on(gfx942)"`` compares the backend with
the references this way, through opmux-jit's native launcher and the very calls of HIP that a GPU would get. Needs
``opmux-asm``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opmux.plugin import cpu_plays
from opmux_asm.launching import hosted
from opmux_emulator.hip.library import settings
from opmux_emulator.hip.runtime import Runtime
from opmux_emulator.hip.triton_driver import played, registered


@contextmanager
def on(arch: str) -> Iterator[None]:
    """Within it, calls with CPU tensors are planned for an arch, and launched on the emulator.

    The tensors of a launch are registered with HIP while it runs, so that accesses outside them are judged; a kernel
    that breaks a rule raises the driver's error with the judgement.

    Args:
        arch: what the device plays, gfx942 or gfx950.
    """
    hip = Runtime()

    @contextmanager
    def prepared(arguments: tuple[Any, ...]) -> Iterator[None]:
        with registered(hip, arguments):
            yield
            hip.synchronize()

    with played(hip, settings(arch)), cpu_plays(arch), hosted(prepared):
        yield
