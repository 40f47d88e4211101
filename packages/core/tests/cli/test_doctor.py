"""`opmux doctor`."""

import json

import torch
from backends import implementation, plugin

from opmux import arch, tuning
from opmux.cli import doctor
from opmux.plugins.loading import temporary_plugin
from opmux.tuning.layers import LoadedFile, Refusal, TuningReport


def report(opmux_cli, code: int = 0) -> dict:
    done = opmux_cli("doctor", "--json")
    assert done.exit_code == code
    return json.loads(done.stdout)


def variable(told: dict, name: str) -> dict:
    return next(v for v in told["variables"] if v["name"] == name)


def test_a_good_installation_passes(opmux_cli) -> None:
    told = report(opmux_cli)
    assert told["passed"]
    assert told["environment"]["torch"] == torch.__version__
    assert told["devices"][0] == {"device": "cpu", "arch": "cpu", "name": "CPU"}
    assert told["devices_problem"] is None
    text = opmux_cli("doctor").stdout
    assert "no plugin" not in text
    assert text.splitlines()[-1] == "all is well"


def test_a_loaded_plugin_is_shown(opmux_cli, rows_plugin) -> None:
    with temporary_plugin(rows_plugin, "rows", "opmux-rows", "1.2"):
        told, text = report(opmux_cli), opmux_cli("doctor").stdout
    assert told["plugins"]["loaded"] == [
        {
            "name": "rows",
            "distribution": "opmux-rows",
            "version": "1.2",
            "implementations": 2,
            "ops": [],
            "commands": [],
            "tuned_records": [],
        }
    ]
    assert next(line for line in text.splitlines() if line.startswith("rows ")).split() == [
        "rows",
        "opmux-rows",
        "1.2",
        "2",
    ]


def test_a_plugin_that_failed_exits_with_1_and_gives_its_reason(opmux_cli) -> None:
    with temporary_plugin(plugin(version=2), "new", "opmux-new", "9"), temporary_plugin(ImportError("no HIP"), "dead"):
        told, done = report(opmux_cli, 1), opmux_cli("doctor")
    assert not told["passed"]
    new, dead = told["plugins"]["failed"]
    assert new["reason"] == "API version 2, this core speaks 1: pip install -U opmux"
    assert dead["reason"] == "ImportError: no HIP"
    assert dead["details"].startswith("Traceback (most recent call last)")
    assert done.exit_code == 1
    assert "plugins that failed to load" in done.stdout
    assert "ImportError: no HIP" in done.stdout
    assert done.stdout.splitlines()[-1] == "2 plugins, or parts of one, failed to load"


def test_a_part_of_a_plugin_that_failed_counts(opmux_cli) -> None:
    broken = plugin(implementation("m:f"), implementation("m:f", op="dance", name="x"))
    with temporary_plugin(broken, "half"):
        told = report(opmux_cli, 1)
    assert [p["name"] for p in told["plugins"]["loaded"]] == ["half"]
    assert "implements `dance`, which is not an op of this core" in told["plugins"]["failed"][0]["reason"]


def test_a_command_that_cannot_be_added_counts(opmux_cli) -> None:
    with temporary_plugin(plugin(opmux_commands=lambda: [("bench", print)]), "greedy"):
        told = report(opmux_cli, 1)
    assert told["plugins"]["failed"][0]["reason"] == "command `bench` is the core's own: rename it"


def test_a_driver_that_does_not_answer_is_said(opmux_cli, monkeypatch) -> None:
    def dead() -> None:
        raise RuntimeError("the driver is too old")

    monkeypatch.setattr(arch, "present_archs", dead)
    told = doctor.examine()
    assert told["devices_problem"] == "the driver is too old"
    assert [d["device"] for d in told["devices"]] == ["cpu"]


def test_tuned_records_are_shown(opmux_cli, monkeypatch) -> None:
    made = TuningReport((LoadedFile("user", "a.csv", 3, 1),), (Refusal("user", "a.csv", 7, "too fast"),), {"linear": 3})
    monkeypatch.setattr(tuning, "report", lambda: made)
    told, done = report(opmux_cli, 1), opmux_cli("doctor")
    assert told["tuned"] == made.as_dict()
    assert not told["passed"]
    assert done.exit_code == 1
    assert "a.csv:7: too fast" in done.stdout
    assert done.stdout.splitlines()[-1] == "1 tuned record, or file of them, refused"


def test_a_record_file_that_cannot_be_read_exits_with_1(opmux_cli, monkeypatch, tmp_path) -> None:
    (tmp_path / "records.csv").write_bytes(b"\xff\xfe")
    monkeypatch.setenv("OPMUX_TUNED", str(tmp_path))
    try:
        tuning.reload()
        told = report(opmux_cli, 1)
    finally:
        monkeypatch.delenv("OPMUX_TUNED")
        tuning.reload()
    assert not told["passed"]
    assert told["tuned"]["files"][0]["records"] == 0
    assert "UnicodeDecodeError" in told["tuned"]["refused"][0]["reason"]


def test_only_what_is_registered_is_counted(opmux_cli, rows_plugin) -> None:
    """Of two implementations with one name neither is registered."""
    with temporary_plugin(rows_plugin, "rows", "opmux-rows", "1.2"), temporary_plugin(rows_plugin, "rows", "fork", "3"):
        told = report(opmux_cli, 1)
    counted = {p["distribution"]: p["implementations"] for p in told["plugins"]["loaded"]}
    assert counted == {"opmux-rows": 0, "fork": 0}
