"""What the core reads of this package: the records of every library. Touches no device."""

from collections.abc import Iterator

from opmux.plugin import Implementation, hookimpl
from opmux_vendor import attention_records, product_records, scaled_records

OPMUX_API_VERSION = 1


@hookimpl
def opmux_implementations() -> Iterator[Implementation]:
    """Every implementation."""
    yield from product_records.RECORDS
    yield from attention_records.RECORDS
    yield from scaled_records.RECORDS
