"""What is in force in one process, put in force in another: ranks of one job then choose alike.

The records and rows travel as the text of files, which is read and checked as any file is; nothing in it is evaluated.
"""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from opmux.errors import TunedRecordError
from opmux.tuning import store
from opmux.tuning.csv_files import write_records
from opmux.tuning.layers import TuningReport
from opmux.tuning.measured.files import SUFFIX, write_measured

_VERSION = 1


def exported() -> str:
    """The records and measured rows that are in force in this process, as text for `adopt`."""
    store.report()  # plugins are loaded, and their files read
    tables, times = store.in_force()
    with tempfile.TemporaryDirectory() as folder:
        records, measured = Path(folder) / "records.csv", Path(folder) / f"rows{SUFFIX}"
        write_records(records, [entry.record for table in tables.values() for entry in table.entries])
        write_measured(measured, [row for op in times.values() for row in op.rows])
        texts = {path.name: path.read_text(encoding="utf-8") for path in (records, measured)}
    return json.dumps({"version": _VERSION, "files": texts})


def adopt(text: str) -> TuningReport:
    """Put in force what `exported` gave in another process, in place of this one's own files, until `release`.

    Raises:
        TunedRecordError: if the text is not of `exported`, or another version's; what is in force then stays.
    """
    try:
        value: Any = json.loads(text)
        files: Any = value["files"] if value["version"] == _VERSION else None
    except (ValueError, TypeError, KeyError):
        files = None
    if not isinstance(files, Mapping) or not all(isinstance(each, str) for each in files.values()):
        raise TunedRecordError("adopt: `text` expected what exported() of the same version of opmux gives, got another")
    store.adopt({Path(name).name: content for name, content in files.items()})
    return store.report()


def release() -> TuningReport:
    """Read this process's own files again."""
    store.adopt(None)
    return store.report()


def follow_rank_zero(group: Any = None) -> None:
    """Put in force on every rank what is in force on rank 0; to be called on all ranks. Alone, it does nothing.

    Args:
        group: the process group; the default one if None.
    """
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size(group) == 1:
        return
    first = distributed.get_rank(group) == 0
    box = [exported() if first else None]
    distributed.broadcast_object_list(box, group=group, group_src=0)
    if not first and box[0] is not None:
        adopt(box[0])
