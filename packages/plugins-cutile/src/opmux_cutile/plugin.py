"""What the core loads of this package: its records, and how to compile ahead. Touches no device and no compiler."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from opmux.plugin import Implementation, Prebuilt, hookimpl
from opmux_cutile.attention import implementations as attention
from opmux_cutile.attention.gathered import implementations as gathered_attention
from opmux_cutile.cache import implementations as cache
from opmux_cutile.gates import implementations as gates
from opmux_cutile.grouped import backward_implementations as group_gradients
from opmux_cutile.grouped import implementations as grouped
from opmux_cutile.grouped import scaled_implementations as scaled_groups
from opmux_cutile.norms import implementations as norms
from opmux_cutile.paged import implementations as paged
from opmux_cutile.paged.gathered import implementations as gathered_pages
from opmux_cutile.products import implementations as products
from opmux_cutile.products.gathered import implementations as gathered_products
from opmux_cutile.quantization import implementations as quantization
from opmux_cutile.rope import implementations as rope
from opmux_cutile.scaled import implementations as scaled

OPMUX_API_VERSION = 1


@hookimpl
def opmux_implementations() -> Iterator[Implementation]:
    """Every implementation."""
    yield from norms.RECORDS
    yield from gates.RECORDS
    yield from products.RECORDS
    yield from gathered_products.RECORDS
    yield from rope.RECORDS
    yield from attention.RECORDS
    yield from gathered_attention.RECORDS
    yield from cache.RECORDS
    yield from paged.RECORDS
    yield from gathered_pages.RECORDS
    yield from grouped.RECORDS
    yield from group_gradients.RECORDS
    yield from scaled_groups.RECORDS
    yield from scaled.RECORDS
    yield from quantization.RECORDS


@hookimpl
def opmux_tuned_records() -> list[str]:
    """Rows that were measured on GPUs of each kind, of these kernels."""
    return [str(Path(__file__).with_name("records"))]


@hookimpl
def opmux_prebuilders() -> list[Callable[..., Prebuilt]]:
    """The kernels of recorded calls, compiled for an arch."""
    return [_prebuild]


def _prebuild(*arguments: Any) -> Prebuilt:
    from opmux_cutile.prebuilding import prebuild  # imports opmux-jit

    return prebuild(*arguments)
