"""Where records come from, and which layer wins."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import opmux
from opmux import tuning
from opmux.definition import define_op
from opmux.plugin import hookimpl
from opmux.plugins import loading
from opmux.tuning import BadRow
from opmux.tuning.layers import user_folder as where_the_user_has_them

X, WEIGHT = torch.ones(128, 64), torch.ones(64)


class Shipping:
    """A plugin that ships records and reads formats."""

    OPMUX_API_VERSION = 1

    def __init__(self, records: tuple[Any, ...] = (), readers: tuple[Any, ...] = ()) -> None:
        self.records, self.readers = records, readers

    @hookimpl
    def opmux_tuned_records(self) -> tuple[Any, ...]:
        return self.records

    @hookimpl
    def opmux_record_readers(self) -> tuple[Any, ...]:
        return self.readers


def chosen() -> tuple[str, Any]:
    """What takes the call, and its config."""
    plan = opmux.explain(opmux.rms_norm, X, WEIGHT)
    assert plan.chosen is not None
    return plan.chosen.name, plan.config


def test_a_later_layer_wins(mine, folder: Path, user_folder: Path, tmp_path: Path, put, row: Callable) -> None:
    shipped = put(tmp_path / "shipped.csv", row(config='{"block": 1}'))
    with loading.temporary_plugin(Shipping((str(shipped),)), "shipping"):
        assert chosen() == ("mine", {"block": 1})
        put(user_folder / "records.csv", row(config='{"block": 2}'))
        tuning.reload()
        assert chosen() == ("mine", {"block": 2})
        put(folder / "records.csv", row(backend="mine:plain", config=""))
        report = tuning.reload()
        assert chosen() == ("mine:plain", None)
        assert [f.layer for f in report.files] == ["plugin", "user", "environment"]
        assert report.ops == {"rms_norm": 2}
        assert report.refused == ()
    assert [f.layer for f in tuning.report().files] == ["user", "environment"]


def test_only_the_same_place_is_replaced(mine, folder: Path, user_folder: Path, put, row: Callable) -> None:
    put(
        user_folder / "records.csv", row(config='{"block": 1}'), row(dims="tokens=512;hidden=64", config='{"block": 2}')
    )
    put(folder / "records.csv", row(config='{"block": 3}'), row(dims="tokens=128;hidden=32"))
    assert tuning.reload().ops == {"rms_norm": 3}
    assert chosen() == ("mine", {"block": 3})
    assert opmux.explain(opmux.rms_norm, torch.ones(400, 64), WEIGHT).config == {"block": 2}


def test_a_config_of_another_backend_leaves_the_pick(mine, folder: Path, user_folder: Path, put, row: Callable) -> None:
    put(user_folder / "records.csv", row(backend="mine:plain", config=""))
    put(folder / "records.csv", row(compared="1"))
    tuning.reload()
    assert chosen() == ("mine:plain", None)
    assert opmux.explain(opmux.rms_norm, X, WEIGHT, backend="mine").config is None  # its first taker is mine:plain
    with opmux.policy.override(disable=["mine:plain"]):
        assert chosen() == ("mine", {"block": 64})


def test_a_record_of_the_same_backend_takes_the_pick_back(
    mine, folder: Path, user_folder: Path, put, row: Callable
) -> None:
    put(user_folder / "records.csv", row())
    put(folder / "records.csv", row(compared="1"))
    tuning.reload()
    assert chosen() == ("mine:plain", None)  # by priority: nothing picks any more


def test_what_a_lower_layer_compared_still_gives_its_config(
    mine, folder: Path, user_folder: Path, put, row: Callable
) -> None:
    put(user_folder / "records.csv", row())
    put(folder / "records.csv", row(backend="reference", config=""))
    tuning.reload()
    assert chosen() == ("reference", None)
    with opmux.policy.override(prefer=["mine"], disable=["mine:plain"]):
        assert chosen() == ("mine", {"block": 64})


def test_the_fastest_of_one_place_and_layer_is_picked(mine, folder: Path, put, row: Callable) -> None:
    put(folder / "a.csv", row(time_us="10"), row(backend="reference", config="", time_us="12"))
    put(folder / "b.csv", row(backend="mine:plain", config="", time_us="11"))
    tuning.reload()
    assert chosen() == ("mine", {"block": 64})


def test_the_users_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert where_the_user_has_them() == tmp_path / "opmux" / "tuned"
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/someone")
    assert where_the_user_has_them() == Path("/home/someone/.config/opmux/tuned")
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert where_the_user_has_them() == Path("/home/someone/.config/opmux/tuned")


def test_no_folder_is_no_problem_unless_it_was_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPMUX_TUNED")
    assert tuning.reload() == tuning.TuningReport()
    monkeypatch.setenv("OPMUX_TUNED", str(folder / "gone"))
    (refusal,) = tuning.reload().refused
    assert (refusal.layer, refusal.file, refusal.line) == ("environment", str(folder / "gone"), None)
    assert refusal.reason.startswith("cannot be read: FileNotFoundError: ")


def test_what_lies_in_a_folder(folder: Path, put, row: Callable) -> None:
    put(folder / "b.CSV", row())
    put(folder / ".hidden.csv", row())
    (folder / "sub.csv").mkdir()
    (folder / "README.md").write_text("about these records")
    (folder / "records.csv~").write_text("")
    report = tuning.reload()
    assert [Path(f.file).name for f in report.files] == ["b.CSV"]
    assert [(Path(r.file).name, r.reason) for r in report.refused] == [
        ("records.csv~", "no reader for `.csv~`; there are .csv, .measured")
    ]


def test_a_plugin_ships_a_folder(folder: Path, tmp_path: Path, put, row: Callable) -> None:
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    put(shipped / "a.csv", row())
    put(shipped / "b.csv", row(dims="tokens=1;hidden=64"))
    with loading.temporary_plugin(Shipping((shipped, shipped / "a.csv")), "shipping"):
        assert [(f.layer, Path(f.file).name) for f in tuning.report().files] == [
            ("plugin", "a.csv"),
            ("plugin", "b.csv"),
        ]


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ("tuned.csv", "opmux_tuned_records of shipping: expected an absolute path, got 'tuned.csv'"),
        (3, "opmux_tuned_records of shipping: expected an absolute path, got 3"),
        ("/nowhere/a.yaml", "/nowhere/a.yaml: no reader for `.yaml`; there are .csv, .measured"),
        (
            "/nowhere/a.csv",
            "/nowhere/a.csv: cannot be read: FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/a.csv'",
        ),
    ],
)
def test_what_a_plugin_ships_may_be_wrong(folder: Path, item: Any, text: str) -> None:
    with loading.temporary_plugin(Shipping((item,)), "shipping") as loaded:
        assert loaded is not None
        assert [str(r) for r in tuning.report().refused] == [text]


def read_json_lines(path: Path) -> Iterator[Any]:
    """A reader of another format: values are numbers, lists and mappings."""
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            yield {**json.loads(line), "line": number}
        except ValueError:
            yield BadRow(number, "no JSON")


GOOD = {
    "op": "quantize",
    "arch": "cpu",
    "dtypes": {"x": "f32"},
    "dims": {"batch": 1, "m": 8, "k": 256},
    "options": {"dtype": "e4m3fn", "block": [1, -1]},
    "backend": "other",
    "config": {"rows": [1, 2], "fast": True},
    "time_us": 3,
    "error": 0.5,
    "compared": 2,
}


def test_a_plugin_reads_another_format(folder: Path, put, row: Callable) -> None:
    lines = [GOOD, "", {**GOOD, "speed": 3}, {**GOOD, "time_us": 0}, {**GOOD, "dims": {"batch": 1, "m": 9, "k": 256}}]
    (folder / "a.jsonl").write_text("\n".join(json.dumps(line) if line else "{" for line in lines))
    put(folder / "b.csv", row())
    with loading.temporary_plugin(Shipping(readers=((".jsonl", read_json_lines),)), "reading"):
        report = tuning.report()
        assert report.ops == {"quantize": 2, "rms_norm": 1}
        assert [(r.line, r.reason.partition(";")[0]) for r in report.refused] == [
            (2, "no JSON"),
            (3, "quantize: `columns` expected columns of a record, got `speed`"),
            (4, "quantize: `time_us` expected a positive number of microseconds, got 0.0"),
        ]
        (record, _) = (e.record for e in tuning.store._loaded.tables["quantize"].entries)
        assert record.options == {"dtype": torch.float8_e4m3fn, "block": (1, -1)}
        assert (record.config, record.where) == ({"rows": [1, 2], "fast": True}, "a.jsonl:1")
        assert tuning.load_records(folder / "b.csv")[0].op == "rms_norm"
    assert tuning.report().ops == {"rms_norm": 1}
    assert [r.reason for r in tuning.report().refused] == ["no reader for `.jsonl`; there are .csv, .measured"]


def test_a_reader_that_raises_refuses_the_rest_of_its_file(folder: Path, put, row: Callable) -> None:
    def read(path: Path) -> Iterator[Any]:
        yield GOOD
        raise ZeroDivisionError("a bug")

    (folder / "a.odd").write_text("")
    put(folder / "b.csv", row())
    with loading.temporary_plugin(Shipping(readers=((".odd", read),)), "reading"):
        report = tuning.report()
        assert report.ops == {"quantize": 1, "rms_norm": 1}
        assert [(r.line, r.reason) for r in report.refused] == [(None, "cannot be read: ZeroDivisionError: a bug")]


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ("csv", "expected (file suffix with a dot, reader), got 'csv'"),
        (("tsv", read_json_lines), f"expected (file suffix with a dot, reader), got {('tsv', read_json_lines)!r}"),
        ((".tsv", 3), "expected (file suffix with a dot, reader), got ('.tsv', 3)"),
        ((".CSV", read_json_lines), "the reader of .CSV is declared twice; the first one is kept"),
    ],
    ids=["no pair", "no dot", "no reader", "twice"],
)
def test_a_reader_may_be_wrong(folder: Path, put, row: Callable, item: Any, text: str) -> None:
    put(folder / "a.csv", row())
    with loading.temporary_plugin(Shipping(readers=(item,)), "reading"):
        assert [str(r) for r in tuning.report().refused] == [f"opmux_record_readers of reading: {text}"]
        assert tuning.report().ops == {"rms_norm": 1}


def test_records_of_an_op_that_a_plugin_defines(folder: Path, put, row: Callable) -> None:
    class Defining:
        OPMUX_API_VERSION = 1

        @hookimpl
        def opmux_ops(self) -> list[Any]:
            @define_op
            def doubled_for_records(x: Float32[Tensor, "*rows width"]) -> Float32[Tensor, "*rows width"]:
                """Double."""
                return 2 * x

            return [doubled_for_records]

    put(
        folder / "records.csv",
        row(op="doubled_for_records", dtypes="x=f32", dims="rows=8;width=4", backend="reference", config=""),
    )
    with loading.temporary_plugin(Defining(), "defining"):
        assert tuning.report().ops == {"doubled_for_records": 1}
        plan = opmux.explain(opmux.doubled_for_records, torch.ones(2, 3, 4))
        assert plan.chosen.reason == "tuned for rows=8 (nearest to 6), records.csv:2"
        assert torch.equal(opmux.doubled_for_records(torch.ones(2, 3, 4)), torch.full((2, 3, 4), 2.0))
    assert tuning.report().refused[0].reason.startswith("doubled_for_records: `op` expected the name of an op")
