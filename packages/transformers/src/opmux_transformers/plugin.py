"""What the core reads of this package: a command. Imports neither transformers nor a device."""

from collections.abc import Callable, Iterator

from opmux.plugin import Implementation, hookimpl
from opmux_transformers.command import models

OPMUX_API_VERSION = 1


@hookimpl
def opmux_implementations() -> Iterator[Implementation]:
    """None: this package calls ops but implements none."""
    return iter(())


@hookimpl
def opmux_commands() -> list[tuple[str, Callable[..., None]]]:
    """``opmux models``."""
    return [("models", models)]
