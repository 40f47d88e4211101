"""Measured rows: each implementation's best time at a point, and the machine. What predictions are made from.

`write_measured` writes a file, `read_measured` reads one; ``docs/users/measured-rows.md`` describes the format.
"""

from opmux.tuning.measured.files import SUFFIX, MeasuredFile, read_measured, refusal_of, write_measured
from opmux.tuning.measured.row import FailedConfig, Machine, MeasuredRow

__all__ = [
    "SUFFIX",
    "FailedConfig",
    "Machine",
    "MeasuredFile",
    "MeasuredRow",
    "read_measured",
    "refusal_of",
    "write_measured",
]
