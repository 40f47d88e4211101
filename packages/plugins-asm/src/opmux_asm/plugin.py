"""What the core loads of this package: the records of every family. Touches no device."""

from collections.abc import Iterator

from opmux.plugin import Implementation, hookimpl
from opmux_asm.attention import implementations as attention
from opmux_asm.products import implementations as products
from opmux_asm.row_ops import implementations as row_ops
from opmux_asm.token_ops import implementations as token_ops

OPMUX_API_VERSION = 1


@hookimpl
def opmux_implementations() -> Iterator[Implementation]:
    """Every implementation."""
    yield from row_ops.RECORDS
    yield from products.RECORDS
    yield from token_ops.RECORDS
    yield from attention.RECORDS
