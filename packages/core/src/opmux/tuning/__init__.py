"""Tuned records: measured rows that say which backend and config were fastest. Format, layers, checks, lookup.

`report` says which records are in force and which rows were refused, `reload` reads the files anew, `load_records`
reads one file strictly, `write_records` writes one. ``docs/users/tuned-records.md`` describes the format and the rules.
"""

import importlib
from typing import TYPE_CHECKING, Any

from opmux.tuning.store import install, lookup, reload, report

if TYPE_CHECKING:
    from opmux.tuning.checks import check_record, gbps_of, tflops_of
    from opmux.tuning.layers import LoadedFile, Refusal, TuningReport, load_records
    from opmux.tuning.records import BadRow, RecordReader, TunedRecord, write_records

__all__ = [
    "BadRow",
    "LoadedFile",
    "RecordReader",
    "Refusal",
    "TunedRecord",
    "TuningReport",
    "check_record",
    "gbps_of",
    "install",
    "load_records",
    "lookup",
    "reload",
    "report",
    "tflops_of",
    "write_records",
]

_MODULES = {
    **dict.fromkeys(("check_record", "gbps_of", "tflops_of"), "checks"),
    **dict.fromkeys(("LoadedFile", "Refusal", "TuningReport", "load_records"), "layers"),
    **dict.fromkeys(("BadRow", "RecordReader", "TunedRecord", "write_records"), "records"),
}


def __getattr__(name: str) -> Any:
    """What reads and writes files is imported when it is asked for, so that importing opmux stays quick."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
