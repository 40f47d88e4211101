"""What the core loads of this package: the records of every family. Touches no device."""

from collections.abc import Iterator

from opmux.plugin import Implementation, hookimpl
from opmux_asm.norm import implementations as norm

OPMUX_API_VERSION = 1


@hookimpl
def opmux_implementations() -> Iterator[Implementation]:
    """Every implementation."""
    yield from norm.RECORDS
