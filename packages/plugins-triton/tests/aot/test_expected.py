"""The recorded results of an arch."""

import json
from pathlib import Path

import pytest
from planted_launches import facts_with

from opmux.errors import InvalidArgument
from opmux_triton.aot import expected


def test_records_of_other_versions_stay(tmp_path: Path) -> None:
    record = tmp_path / "a.json"
    expected.write(record, "3.6.0", {"a": facts_with()})
    expected.write(record, "3.9.0", {"b": facts_with()})
    assert set(json.loads(record.read_text())) == {"3.6.0", "3.9.0"}
    assert expected.read(record, "3.6.0") == {"a": facts_with().as_dict()}
    assert expected.read(record, "9.9") is None


def test_some_rows_replace_their_own_and_leave_the_others(tmp_path: Path) -> None:
    record = tmp_path / "a.json"
    expected.write(record, "3.9.0", {"a": facts_with(), "b": facts_with()})
    expected.write(record, "3.9.0", {"b": facts_with(spills=1)}, some=True)
    assert expected.read(record, "3.9.0") == {"a": facts_with().as_dict(), "b": facts_with(spills=1).as_dict()}
    expected.write(record, "3.9.0", {"b": facts_with()})
    assert expected.read(record, "3.9.0") == {"b": facts_with().as_dict()}


def test_a_file_that_is_no_record_is_refused(tmp_path: Path) -> None:
    record = tmp_path / "a.json"
    record.write_text("[]")
    with pytest.raises(InvalidArgument) as raised:
        expected.read(record, "3.9.0")
    assert str(raised.value).startswith(
        f"machine-code: `--expected` expected a JSON object of rows by Triton version, got {record}: "
    )
    assert str(raised.value).endswith("; write it again with --write")
