"""How long each implementation takes a call, and how that is known: what the resolver orders candidates by."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Estimate(NamedTuple):
    """How long one implementation takes a call.

    Attributes:
        time_us: microseconds.
        measured: it was measured at this very point on this device model; otherwise it is predicted.
        rows: from how many measured rows it is predicted; 1 for a measured one.
        compared: it was measured, and so were others at this point: the fastest of these is picked.
        device: the device model of the nearest row, where none of the rows is of the call's, so that times are scaled,
            or where that is not known.
        config: the config to run with: that of a row very near, with the same dims of the model; None where there is
            none, or the implementation takes none.
        file, line: of that row, else of the nearest.
        like: the rows are of calls that differ in more than sizes: a mask, a 16-bit dtype, a variant of the op.
    """

    time_us: float
    measured: bool
    rows: int = 1
    compared: bool = False
    device: str = ""
    config: Mapping[str, Any] | None = None
    file: str = ""
    line: int = 0
    like: bool = False

    @property
    def where(self) -> str:
        """``h200.measured:12``."""
        return f"{os.path.basename(self.file)}:{self.line}"

    @property
    def source(self) -> str:
        """``measured``, ``predicted, from 6 rows``, ``predicted, from 6 rows of NVIDIA H200``, or ``of like calls``."""
        if self.measured:
            return f"measured on {self.device}" if self.device else "measured"
        rows = f"{self.rows} row{'' if self.rows == 1 else 's'}{' of like calls' if self.like else ''}"
        return f"predicted, from {rows}{f' of {self.device}' if self.device else ''}"

    def __str__(self) -> str:
        return f"{short_us(self.time_us)} us ({self.source})"


@dataclass(frozen=True)
class Estimates:
    """What the measured rows say of a call.

    Attributes:
        times: full name -> estimate.
        far: full name -> octaves to its nearest row, of implementations whose rows are too far away to predict from.
        limit: octaves beyond which nothing is predicted.
    """

    times: Mapping[str, Estimate] = field(default_factory=dict)
    far: Mapping[str, float] = field(default_factory=dict)
    limit: float = 0.0

    def why_not(self, name: str) -> str:
        """Why there is no time of an implementation; empty where it has no rows at all."""
        if name not in self.far:
            return ""
        return f"not predicted: its nearest row is {self.far[name]:.1f} octaves away, the limit is {self.limit:g}"


NOTHING = Estimates()
"""What is said of a call where no measured rows are."""


def short_us(time_us: float) -> str:
    """Microseconds with three digits: ``31.2``, ``1240``."""
    return f"{time_us:.0f}" if time_us >= 100 else f"{time_us:.1f}" if time_us >= 10 else f"{time_us:.2f}"
