"""The record: one measured row, as data. `csv_files` reads and writes it, `checks` judges it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from opmux.callpath.op import OPS, Op
from opmux.near import did_you_mean
from opmux.tuning import fields

REQUIRED_COLUMNS = ("op", "arch", "dtypes", "dims", "backend", "time_us", "error", "compared")
COLUMNS = (
    "op", "arch", "dtypes", "options", "dims", "backend", "config", "time_us", "tflops", "gbps", "error", "compared",
    "opmux", "backend_version", "date", "note",
)  # fmt: skip
"""Every column, in the order in which they are written; a file may have them in any order."""


@dataclass(frozen=True)
class TunedRecord:
    """A measured row.

    Attributes:
        op: the op's name.
        arch: the arch it was measured on, exact: ``gfx942``, ``sm_90``, ``cpu``.
        dtypes: dtype of every tensor argument that was given, by name.
        dims: every dim of the signature, a star dim by its product.
        backend: full name of the implementation that was fastest: ``triton`` or ``triton:rows``.
        time_us: median time of one call, all device work in it, cold cache, in microseconds.
        error: the worst error against the reference, as a fraction of the conformance kit's bound: at most 1.
        compared: how many implementations were measured side by side.
        options: options that were not their defaults, and all that have none.
        config: the config the target ran with; None where it takes none.
        tflops: 1e-6 * the op's flops / time_us, where the op states its flops.
        gbps: 1e-3 * bytes of all arguments and results / time_us.
        opmux: version of opmux.
        backend_version: version of the backend's package.
        date: ISO 8601.
        note: free text.
        file: where it was read, not part of its value.
        line: the line there.
    """

    op: str
    arch: str
    dtypes: Mapping[str, torch.dtype]
    dims: Mapping[str, int]
    backend: str
    time_us: float
    error: float
    compared: int
    options: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] | None = None
    tflops: float | None = None
    gbps: float | None = None
    opmux: str = ""
    backend_version: str = ""
    date: str = ""
    note: str = ""
    file: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)

    @property
    def where(self) -> str:
        """``records.csv:12``."""
        return f"{Path(self.file).name}:{self.line}"


def known_op(name: str) -> Op:
    """The op that a record names.

    Raises:
        TunedRecordError: if there is none.
    """
    if name in OPS:
        return OPS[name]
    remedy = f"{did_you_mean(name, OPS)}see `opmux ops`"
    raise fields.refused(name or "a row", "op", "the name of an op", repr(name), remedy)
