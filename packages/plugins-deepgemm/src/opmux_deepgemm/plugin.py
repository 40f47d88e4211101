"""What the core loads of this package: its records. Loads no library and touches no device."""

from collections.abc import Iterator

from opmux.plugin import Implementation, hookimpl
from opmux_deepgemm.implementations import RECORDS

OPMUX_API_VERSION = 1


@hookimpl
def opmux_implementations() -> Iterator[Implementation]:
    """Every implementation."""
    yield from RECORDS
