"""What the core loads of this package: its records, and how to compile ahead. Touches no device and no compiler."""

from collections.abc import Callable, Iterator
from typing import Any

from opmux.plugin import Implementation, Prebuilt, hookimpl
from opmux_cutile.gates import implementations as gates
from opmux_cutile.norms import implementations as norms
from opmux_cutile.products import implementations as products

OPMUX_API_VERSION = 1


@hookimpl
def opmux_implementations() -> Iterator[Implementation]:
    """Every implementation."""
    yield from norms.RECORDS
    yield from gates.RECORDS
    yield from products.RECORDS


@hookimpl
def opmux_prebuilders() -> list[Callable[..., Prebuilt]]:
    """The kernels of recorded calls, compiled for an arch."""
    return [_prebuild]


def _prebuild(*arguments: Any) -> Prebuilt:
    from opmux_cutile.prebuilding import prebuild  # imports opmux-jit

    return prebuild(*arguments)
