"""What the core loads of this package: its records, measured rows, and how to compile ahead. Touches no device."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from opmux.plugin import Implementation, Prebuilt, hookimpl
from opmux_deepgemm.implementations import RECORDS

OPMUX_API_VERSION = 1


@hookimpl
def opmux_implementations() -> Iterator[Implementation]:
    """Every implementation."""
    yield from RECORDS


@hookimpl
def opmux_tuned_records() -> list[str]:
    """Rows of these kernels that were measured on an H200."""
    return [str(Path(__file__).with_name("records"))]


@hookimpl
def opmux_prebuilders() -> list[Callable[..., Prebuilt]]:
    """The kernels of recorded calls, compiled for an arch."""
    return [_prebuild]


def _prebuild(*arguments: Any) -> Prebuilt:
    from opmux_deepgemm.prebuilding import prebuild  # imports opmux-jit

    return prebuild(*arguments)
