"""The rows that this package ships: small, valid as a whole, and what calls on their arch are chosen by."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch

import opmux
import opmux_triton
from opmux.arch import known_arch
from opmux.callpath.op import OPS
from opmux.plugins import loading
from opmux.running.attempt import attempt_of
from opmux.shapes import Point
from opmux.tuning.measured import MeasuredRow, read_measured
from opmux.tuning.prediction import OpTimes
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


@pytest.mark.parametrize("op", CHOSEN_BETWEEN)
def test_a_point_that_is_left_out_is_chosen_well_from_the_others(op: str) -> None:
    """Of the implementations that were timed at a point, the one that the other points' rows would choose."""
    device = max(Counter(row.machine.device for row in rows()).items(), key=lambda item: item[1])[0]
    points: dict[str, list[MeasuredRow]] = {}
    for row in (row for row in rows() if row.op == op and row.machine.device == device):
        points.setdefault(Point(op, row.dtypes, row.dims, row.options).key, []).append(row)
    regrets, chosen_worse = [], 0
    for key, here in points.items():
        chosen = _chosen(here[0], [row for other, there in points.items() if other != key for row in there])
        times = {row.implementation: row.time_us for row in here}
        if chosen in times:
            regrets.append(times[chosen] / min(times.values()))
            chosen_worse += regrets[-1] > 1.10
    assert len(regrets) > len(points) / 2
    assert torch.tensor(regrets).log().mean().exp() <= 1.05
    assert chosen_worse <= 0.2 * len(regrets)


def _chosen(row: MeasuredRow, others: list[MeasuredRow]) -> str:
    op, point = OPS[row.op], Point(row.op, row.dtypes, row.dims, row.options)
    tensors = list(point.tensors().values())
    call = attempt_of(op, op.state, tensors, point.all_options, None, known_arch(row.machine.arch)).call
    times = OpTimes(op, others).estimates(call).times
    # The vendor's package is not loaded in these tests, so the times are compared and no call is resolved.
    return min(times, key=lambda name: times[name].time_us, default="")


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
    norm = {"op": "rms_norm", "dtypes": {"x": "bf16", "weight": "bf16"}, "dims": {"tokens": 16, "hidden": 64}}
    times = {"triton": [10.0, 9.9, 10.3, 11], "vendor:blas": [12.0, 12.0, 12.0, 11]}
    run = {
        **machine,
        "rows": [{"point": linear, "opmux": times}, {"point": norm, "opmux": {"triton": times["triton"]}}],
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
