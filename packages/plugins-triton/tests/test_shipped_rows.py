"""The rows that this package ships: small, valid as a whole, and what calls on their arch are chosen by."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import opmux
import opmux_triton
from opmux.plugins import loading
from opmux.tuning.measured import Machine, MeasuredRow, read_measured, write_measured
from opmux_triton import plugin

LIMIT_BYTES = 300_000
FOLDER = Path(opmux_triton.__file__).with_name("records")
FILES = sorted(FOLDER.iterdir())
OPS_OF_A_MODEL = {
    "linear", "linear_backward", "attention", "attention_backward", "paged_attention", "rms_norm", "add_rms_norm_",
    "layer_norm", "silu_mul", "apply_rope_",
}  # fmt: skip
CHOSEN_BETWEEN = ("attention", "layer_norm", "linear", "linear_backward", "rms_norm")


def rows() -> list[MeasuredRow]:
    """Every row that is shipped."""
    return [row for path in FILES for row in read_measured(path).rows]


def test_the_plugin_names_the_folder_and_it_holds_rows_alone() -> None:
    assert plugin.opmux_tuned_records() == [str(FOLDER)]
    assert FILES
    assert {path.suffix for path in FILES} == {".measured"}
    assert sum(path.stat().st_size for path in FILES) < LIMIT_BYTES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_row_is_refused_and_none_is_of_the_reference(path: Path) -> None:
    loading.ensure_loaded()
    found = read_measured(path)
    assert found.refused == ()
    assert {row.implementation.partition(":")[0] for row in found.rows} <= {"triton", "vendor", "opmux"}
    assert {row.machine.arch for row in found.rows} == {"sm_90"}
    assert len({row.machine.device for row in found.rows}) == 1
    assert not found.failed
    assert all(row.machine.driver and row.machine.versions["torch"] for row in found.rows)
    assert {row.op for row in found.rows} >= OPS_OF_A_MODEL


def test_they_are_in_force_and_predict() -> None:
    layers = {file.file: file.layer for file in opmux.tuning.report().files}
    assert all(layers[str(path)] == "plugin" for path in FILES)
    x, w = (torch.empty(size, 3072, dtype=torch.bfloat16, device="meta") for size in (777, 5120))
    plan = opmux.explain(opmux.linear, x, w, arch="sm_90")
    assert plan.chosen is not None
    assert (plan.chosen.time_source or "").startswith("predicted, from ")


def test_on_another_arch_they_have_no_effect() -> None:
    x, w = (torch.empty(size, 3072, dtype=torch.bfloat16, device="meta") for size in (777, 5120))
    for arch in ("sm_80", "gfx942"):
        plan = opmux.explain(opmux.linear, x, w, arch=arch)
        assert all(candidate.time_us is None for candidate in plan.candidates)


@pytest.fixture
def leave_one_out(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The program as a module."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    import leave_one_out

    yield leave_one_out
    sys.modules.pop("leave_one_out", None)


@pytest.mark.parametrize("op", CHOSEN_BETWEEN)
def test_a_point_that_is_left_out_is_chosen_well_from_the_others(leave_one_out: ModuleType, op: str) -> None:
    """Of the implementations that were timed at a point, the one that the other points' rows would choose."""
    loading.ensure_loaded()
    found = leave_one_out.regrets_of(op, [row for row in rows() if row.op == op])
    assert found.by_time
    assert found.unpredicted == 0
    assert torch.tensor(found.by_time).log().mean().exp() <= 1.05
    assert sum(regret > 1.10 for regret in found.by_time) <= 0.2 * len(found.by_time)


def test_what_has_no_time_keeps_its_priority(leave_one_out: ModuleType) -> None:
    priorities = {"portable": 10, "library": 20, "special": 30}
    assert leave_one_out.first_of(priorities, priorities, {}) == "special"
    assert leave_one_out.first_of(priorities, priorities, {"portable": 2.0, "library": 3.0}) == "special"
    assert leave_one_out.first_of(priorities, priorities, {"portable": 2.0, "special": 3.0}) == "portable"
    assert leave_one_out.first_of(["portable", "library"], priorities, {"portable": 2.0}) == "library"


def test_the_program_prints_a_line_for_each_op(
    leave_one_out: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert leave_one_out.main(["--op", "rms_norm", "--op", "layer_norm"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["op", "rms_norm", "layer_norm", "all"]
    (tmp_path / "none.measured").write_text('{"format":"opmux measured rows","version":1}\n')
    with pytest.raises(SystemExit):
        leave_one_out.main([str(tmp_path / "none.measured")])
    assert "expected rows of a device model, got those of none" in capsys.readouterr().err


MEASURED = """\
{"format":"opmux measured rows","version":1}
{"machine":"m","arch":"sm_90","device":"D"}
{"config":"old","values":{"block":1}}
{"op":"linear","machine":"m","implementation":"reference","dtypes":"x=bf16;w=bf16","dims":["tokens","k","n"],"compared":["reference","triton"]}
[[16,64,64],[900,0.01,0.3]]
{"op":"linear","machine":"m","implementation":"triton","dtypes":"x=bf16;w=bf16","dims":["tokens","k","n"],"compared":["reference","triton"]}
[[16,64,64],[9,0.01,0.3],"old"]
[[16,64,64],"wrong: it differs","old"]
"""


def test_what_is_shipped_of_a_file_that_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "scripts"))
    import ship_records

    (tmp_path / "new.measured").write_text(MEASURED)
    assert ship_records.main([str(tmp_path / "new.measured"), "--out", str(tmp_path / "out.measured")]) == 0
    assert capsys.readouterr().out.startswith("1 rows in ")
    (row,) = read_measured(tmp_path / "out.measured").rows
    assert (row.implementation, row.time_us, row.config, row.compared) == ("triton", 9.0, None, ("triton",))


def test_rows_are_given_the_configs_that_times_are_predicted_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The portable kernel of attention declares its tiles by ``rows``; the Hopper kernel's are of a constant size."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "scripts"))
    import ship_records

    dims = {"batch": 4, "seq_q": 512, "heads": 8, "head_dim": 64, "seq_k": 512, "kv_heads": 2, "value_dim": 64}
    attention = {"op": "attention", "dtypes": dict.fromkeys("qkv", torch.bfloat16), "options": {}, "dims": dims}
    given = {
        "machine": Machine("sm_90", "D", 132),
        "spread": 0.01,
        "error": None,
        "compared": ("triton", "triton:hopper"),
    }
    loading.ensure_loaded()
    made = [
        MeasuredRow(implementation=name, time_us=20.0, **attention, **given) for name in ("triton", "triton:hopper")
    ]
    write_measured(tmp_path / "new.measured", made)
    assert ship_records.main([str(tmp_path / "new.measured"), "--out", str(tmp_path / "out.measured")]) == 0
    configs = {row.implementation: row.config for row in read_measured(tmp_path / "out.measured").rows}
    assert (configs["triton"] or {})["rows"] == 64
    assert configs["triton:hopper"] is None


def test_rows_of_a_run_of_the_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "scripts"))
    import rows_of_choice

    machine = {
        "arch": "sm_90", "device": "D", "multiprocessors": 132, "clock_mhz": 1980.0, "memory_gbps": 4800.0,
        "driver": "580", "versions": {"torch": "2.11.0"}, "clocks": {}, "date": "2026-11-23",
    }  # fmt: skip
    linear = {"op": "linear", "dtypes": {"x": "bf16", "w": "bf16"}, "dims": {"tokens": 16, "k": 4096, "n": 4096}}
    waited = {**linear, "dims": {**linear["dims"], "tokens": 32}}
    norm = {"op": "rms_norm", "dtypes": {"x": "bf16", "weight": "bf16"}, "dims": {"tokens": 16, "hidden": 64}}
    times = {"triton": [10.0, 9.9, 10.3, 11], "vendor:blas": [12.0, 12.0, 12.0, 11]}
    run = {
        **machine,
        "rows": [
            {"point": linear, "opmux": times},
            {"point": waited, "opmux": {"triton": [120.0, 35.0, 260.0, 11]}},
            {"point": norm, "opmux": {"triton": times["triton"]}},
        ],
    }
    (tmp_path / "choice.json").write_text(json.dumps(run))
    made = tmp_path / "drawn.measured"
    words = [str(tmp_path / "choice.json"), "--out", str(made)]
    assert rows_of_choice.main([*words, "--op", "linear"]) == 0
    assert capsys.readouterr().out == "2 rows\n"
    found = read_measured(made)
    assert found.refused == ()
    assert {(row.implementation, row.time_us, row.spread, row.error) for row in found.rows} == {
        ("triton", 10.0, 0.02, None), ("vendor:blas", 12.0, 0.0, None),
    }  # fmt: skip
    assert {row.compared for row in found.rows} == {("triton", "vendor:blas")}
    assert rows_of_choice.main([*words, "--op", "attention"]) == 1
