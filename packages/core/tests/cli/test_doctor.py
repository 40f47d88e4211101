"""`opmux doctor`."""

import importlib.metadata
import json
import stat
from pathlib import Path

import pytest
import torch
from backends import implementation, plugin

from opmux import arch, policy, tuning
from opmux.cli import doctor, toolchains
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


@pytest.mark.parametrize("name", policy.ENVIRONMENT)
def test_every_variable_is_listed_with_its_meaning_and_value(opmux_cli, monkeypatch, name: str) -> None:
    told = variable(report(opmux_cli), name)
    assert told == {"name": name, "value": None, "meaning": policy.ENVIRONMENT[name], "problem": None}
    monkeypatch.setenv(name, "reference")
    assert variable(report(opmux_cli), name)["value"] == "reference"


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("OPMUX_PREFER", "reference,triton", "not registered: triton"),
        ("OPMUX_DISABLE", "ck,asm", "not registered: ck, asm"),
        ("OPMUX_PLUGINS", "no-such-plugin", "not installed: no-such-plugin"),
        ("OPMUX_TUNED", "/no/such/folder", "no such folder"),
        ("OPMUX_LOG", "loud", "expected one of debug, info, warning, error"),
        ("OPMUX_PERFER", "triton", "opmux reads no such variable; did you mean OPMUX_PREFER?"),
        ("OPMUX_WHATEVER_ELSE", "1", "opmux reads no such variable"),
    ],
)
def test_what_is_wrong_with_a_variable_is_said(opmux_cli, monkeypatch, name: str, value: str, problem: str) -> None:
    monkeypatch.setenv(name, value)
    assert variable(report(opmux_cli), name)["problem"] == problem
    text = opmux_cli("doctor").stdout
    assert problem in text
    assert text.splitlines()[-1] == "1 environment variable to look at"


def test_an_arch_that_is_none_is_said(opmux_cli, monkeypatch) -> None:
    monkeypatch.setenv("OPMUX_ARCH", "h100")
    assert variable(report(opmux_cli), "OPMUX_ARCH")["problem"].startswith("arch: `h100` expected `cpu`, ")


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


def executable(path: Path, says: str) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_compilers_are_found_on_the_path_and_in_their_homes(monkeypatch, tmp_path: Path) -> None:
    nvcc = executable(tmp_path / "bin" / "nvcc", "Cuda compilation tools, release 12.4, V12.4.131")
    hipcc = executable(tmp_path / "rocm" / "bin" / "hipcc", "HIP version: 6.2.41133-dd7f95766")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    _, found_nvcc, found_hipcc = toolchains.toolchains()
    assert found_nvcc == {"name": "nvcc", "version": "12.4", "path": str(nvcc)}
    assert found_hipcc == {"name": "hipcc", "version": "6.2.41133", "path": str(hipcc)}


def test_a_compiler_that_says_no_version_has_none(monkeypatch, tmp_path: Path) -> None:
    executable(tmp_path / "nvcc", "?")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert toolchains.toolchains()[1] == {"name": "nvcc", "version": None, "path": str(tmp_path / "nvcc")}


def test_toolchains_that_are_absent_are_listed_without_version_or_path(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CUDA_HOME", "CUDA_PATH", "ROCM_PATH", "HIP_PATH"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(
        toolchains, "_COMPILERS", {n: (v, str(tmp_path), p) for n, (v, _, p) in toolchains._COMPILERS.items()}
    )
    monkeypatch.setattr(toolchains, "_TRITON", ("no-such-distribution",))
    assert toolchains.toolchains() == [
        {"name": name, "version": None, "path": None} for name in ("triton", "nvcc", "hipcc")
    ]


def test_triton_is_looked_up_by_its_distribution(monkeypatch) -> None:
    monkeypatch.setattr(toolchains, "_TRITON", ("no-such-distribution", "torch"))
    # The distribution's version, which may lack the build's suffix that torch.__version__ has.
    assert toolchains.toolchains()[0]["version"] == importlib.metadata.version("torch")
