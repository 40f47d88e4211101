"""What the core reads of this package: a command. Imports neither numpy nor the interpreter."""

from collections.abc import Callable, Iterator

from opmux.plugin import Implementation, hookimpl
from opmux_emulator.command import emulate

OPMUX_API_VERSION = 1


@hookimpl
def opmux_implementations() -> Iterator[Implementation]:
    """None: this package runs kernels of others."""
    return iter(())


@hookimpl
def opmux_commands() -> list[tuple[str, Callable[..., None]]]:
    """``opmux emulate``."""
    return [("emulate", emulate)]
