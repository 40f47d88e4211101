"""Tuned records: measured rows that say which backend and config were fastest. Format, layers, checks, lookup.

`report` says which records are in force and which rows were refused, `reload` reads the files again, `load_records`
reads one file strictly, `write_records` writes one. ``docs/users/tuned-records.md`` describes the format and the rules.
"""

import importlib
from typing import TYPE_CHECKING, Any

from opmux.tuning.store import evidence, install, lookup, reload, report

if TYPE_CHECKING:
    from opmux.plugins.record_readers import BadRow, RecordReader
    from opmux.tuning.checks import check_record, gbps_of, tflops_of
    from opmux.tuning.csv_files import write_records
    from opmux.tuning.exchange import adopt, exported, follow_rank_zero, release
    from opmux.tuning.layers import LoadedFile, Refusal, TuningReport, load_records
    from opmux.tuning.record import TunedRecord

__all__ = [
    "BadRow",
    "LoadedFile",
    "RecordReader",
    "Refusal",
    "TunedRecord",
    "TuningReport",
    "adopt",
    "check_record",
    "evidence",
    "exported",
    "follow_rank_zero",
    "gbps_of",
    "install",
    "load_records",
    "lookup",
    "release",
    "reload",
    "report",
    "tflops_of",
    "write_records",
]

_MODULES = {
    **dict.fromkeys(("adopt", "exported", "follow_rank_zero", "release"), "opmux.tuning.exchange"),
    **dict.fromkeys(("check_record", "gbps_of", "tflops_of"), "opmux.tuning.checks"),
    **dict.fromkeys(("LoadedFile", "Refusal", "TuningReport", "load_records"), "opmux.tuning.layers"),
    **dict.fromkeys(("BadRow", "RecordReader"), "opmux.plugins.record_readers"),
    "TunedRecord": "opmux.tuning.record",
    "write_records": "opmux.tuning.csv_files",
}


def __getattr__(name: str) -> Any:
    """The modules that read and write files are imported on first use, so that importing opmux stays quick."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value
