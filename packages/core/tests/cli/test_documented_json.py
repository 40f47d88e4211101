"""What docs/users/command-line.md says each command prints is what it prints."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from backends import backends, implementation, plugin
from cli.samples import BAD_OP, DEMO, GOOD_OP, result

from opmux import demo, tuning
from opmux.tuning.layers import LoadedFile, Refusal, TuningReport

PAGE = Path(__file__).parents[4] / "docs" / "users" / "command-line.md"
EXAMPLES: dict[str, Any] = {
    title: json.loads(text)
    for title, text in re.findall(r'```json title="opmux (\w+) --json"\n(.*?)```', PAGE.read_text("utf-8"), re.S)
}
FREE = {
    "doctor.tuned.ops",
    "doctor.tuned.measured",
    "ops.ops[].options[].default",
    "explain.config",
    "conformance.ops[].skips",
    "conformance.ops[].not_run",
    "conformance.environment.plugins",
    "conformance.environment.not_checked",
}
"""Values of any kind, and objects whose keys are data."""


def differences(documented: Any, printed: Any, where: str) -> list[str]:
    """Where two objects have other fields, or values of other kinds; null and empty lists say nothing."""
    if documented is None or printed is None or where in FREE:
        return []
    if isinstance(documented, dict) and isinstance(printed, dict):
        found = [f"{where}.{key}" for key in documented.keys() ^ printed.keys()]
        for key in documented.keys() & printed.keys():
            found += differences(documented[key], printed[key], f"{where}.{key}")
        return found
    if isinstance(documented, list) and isinstance(printed, list):
        return [d for item in printed if documented for d in differences(documented[0], item, f"{where}[]")]
    numbers = (int, float)
    same = type(documented) is type(printed) or (
        type(documented) in numbers and type(printed) in numbers  # a bool is neither
    )
    return [] if same else [f"{where}: documented as {documented!r}, printed {printed!r}"]


WORDS = {
    "doctor": (),
    "ops": (),
    "backends": (),
    "explain": ("rms_norm", "x=bf16[4,8]", "weight=bf16[8]", "--arch", "cpu"),
    "conformance": ("rows",),
    "bench": ("rms_norm", "--rounds", "1", "--device", "cpu"),
    "demo": (),
}


def test_every_command_has_an_example() -> None:
    assert set(EXAMPLES) == set(WORDS)


@pytest.mark.parametrize("command", WORDS)
def test_the_example_has_the_fields_that_are_printed(opmux_cli, monkeypatch, command: str, rows_plugin, runner) -> None:
    records = TuningReport(
        (LoadedFile("user", "a.csv", 3, 1),), (Refusal("user", "a.csv", 7, "too fast"),), {"linear": 3}, {"linear": 240}
    )
    monkeypatch.setattr(tuning, "report", lambda: records)
    monkeypatch.setattr(demo, "run", lambda *_, **__: DEMO)
    runner.answer = result(GOOD_OP, BAD_OP)
    monkeypatch.setenv("OPMUX_PERFER", "triton")
    monkeypatch.setattr("opmux.bench.work._COPY_BYTES", {"cpu": 2**16})
    monkeypatch.setattr("opmux.bench.work._MATMUL", {"cpu": 64})
    far = implementation("nowhere:rms_norm", archs=("sm_90",))
    given = {"rows": rows_plugin, "far": plugin(far, opmux_commands=lambda: []), "dead": ValueError("no luck")}
    with backends(**given):
        done = opmux_cli(command, *WORDS[command], "--json")
    printed = json.loads(done.stdout)
    assert differences(EXAMPLES[command], printed, command) == []
