"""What the core loads of this package: the records of every family. Imports no Triton and touches no device."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from opmux.plugin import Implementation, Prebuilt, hookimpl
from opmux_triton import families, versions
from opmux_triton.aot.command import machine_code
from opmux_triton.archs import PORTABLE
from opmux_triton.interpreter import INTERPRETED

OPMUX_API_VERSION = 1

versions.check_triton()


@hookimpl
def opmux_implementations() -> Iterator[Implementation]:
    """Every implementation, for GPUs; for the CPU if Triton's interpreter is on."""
    for record in families.records():
        if not INTERPRETED:
            yield record
        elif record.archs == PORTABLE:  # the others use one arch's own instructions
            yield replace(record, archs=("cpu",), capturable=False)


@hookimpl
def opmux_tuned_records() -> list[str]:
    """Rows that were measured on GPUs of each kind: of these kernels, and of what they are compared with."""
    return [str(Path(__file__).with_name("records"))]


@hookimpl
def opmux_commands() -> list[tuple[str, Callable[..., None]]]:
    """``opmux machine-code``."""
    return [("machine-code", machine_code)]


@hookimpl
def opmux_prebuilders() -> list[Callable[..., Prebuilt]]:
    """The kernels of recorded calls, compiled for an arch."""
    return [_prebuild]


def _prebuild(*arguments: Any) -> Prebuilt:
    from opmux_triton.aot.prebuild import prebuild  # imports Triton

    return prebuild(*arguments)
