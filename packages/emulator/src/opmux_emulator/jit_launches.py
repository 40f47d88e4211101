"""Launches by opmux-jit's native launcher on the emulator's HIP library: CPU tensors stand for those of an absent GPU.

``opmux conformance asm --profile emulator --within "opmux_emulator.jit_launches:on(gfx942)"`` compares a backend that
launches through it (asm, ck) with the references, by the very calls of HIP that a GPU would get. Needs ``opmux-jit``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opmux.plugin import cpu_plays
from opmux_emulator.hip.library import settings
from opmux_emulator.hip.runtime import Runtime
from opmux_emulator.hip.triton_driver import played, registered
from opmux_jit.launching import hosted


@contextmanager
def on(arch: str) -> Iterator[None]:
    """Within it, calls with CPU tensors are planned for an arch, and launched on the emulator.

    The tensors of a launch are registered with HIP while it runs, so that accesses outside them are judged; a kernel
    that breaks a rule raises the driver's error with the judgement.

    Args:
        arch: what the device plays.
    """
    hip = Runtime()

    @contextmanager
    def prepared(arguments: tuple[Any, ...]) -> Iterator[None]:
        with registered(hip, arguments):
            yield
            hip.synchronize()

    with played(hip, settings(arch)), cpu_plays(arch), hosted(prepared):
        yield
