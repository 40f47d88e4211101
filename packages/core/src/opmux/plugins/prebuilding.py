"""Compiling ahead: what a backend offers for `opmux prebuild`, and which backends offer it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opmux.plugins import loading


@dataclass(frozen=True)
class Prebuilt:
    """What a backend compiled ahead.

    Attributes:
        kernels: how many kernels there are for the calls, all of them in the folder.
        failures: what could not be built, a line each.
        made_with: names and versions of what compiled them.
    """

    kernels: int
    failures: Sequence[str] = ()
    made_with: Mapping[str, str] = field(default_factory=dict)


Prebuilder = Callable[[str, Sequence[Any], Path, int, Callable[[int, int], None]], Prebuilt]
"""Called with an arch, the calls (`opmux.shapes.Point`), an empty folder for the machine code, the number of processes
to compile in, and a function to be told the number of finished and of all kernels."""


def prebuilders() -> dict[str, Prebuilder]:
    """The functions of `opmux_prebuilders` by backend; loads the installed plugins."""
    return {
        plugin.name: function for plugin in loading.loaded_plugins() for function in plugin.prebuilders[:1]
    }  # one for each backend
