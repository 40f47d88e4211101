"""The page about the format holds: its file is read, its tables are complete."""

import re
from pathlib import Path

from opmux import tuning
from opmux.tuning.matching import CAPACITY, NEAREST
from opmux.tuning.record import COLUMNS, REQUIRED_COLUMNS

PAGE = (Path(__file__).parents[4] / "docs" / "users" / "tuned-records.md").read_text(encoding="utf-8")


def test_the_file_that_it_shows_is_read(tmp_path: Path) -> None:
    shown = re.search(r"^```csv\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert shown is not None
    file = tmp_path / "shown.csv"
    file.write_text(shown[1], encoding="utf-8")
    records = tuning.load_records(file)
    assert [r.op for r in records] == ["rms_norm", "linear", "attention", "quantize"]
    tuning.write_records(tmp_path / "again.csv", records)
    assert tuning.load_records(tmp_path / "again.csv") == records


def test_every_column_is_described() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\| (required )?\|$", PAGE, re.MULTILINE)
    assert tuple(name for name, _ in rows) == COLUMNS
    assert tuple(name for name, required in rows if required) == REQUIRED_COLUMNS


def test_every_size_is_named() -> None:
    for name in (*NEAREST, *CAPACITY):
        assert f"`{name}`" in PAGE or f"`*{name}`" in PAGE
