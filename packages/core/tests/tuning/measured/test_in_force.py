"""Measured rows in force: the choice, the plan key, explain, layers, and ranks that choose alike."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from backends import backends, implementation

import opmux
from opmux import tuning
from opmux.errors import TunedRecordError
from opmux.plugin import Priority
from opmux.tuning.measured import Machine, MeasuredRow, write_measured
from opmux.tuning.measured.device import device_of

HERE = device_of(torch.device("cpu"))
CPU = Machine("cpu", HERE.name, HERE.multiprocessors)


def row(name: str, tokens: int, time_us: float, hidden: int = 64, **fields) -> MeasuredRow:
    made = MeasuredRow(
        op="rms_norm",
        dtypes={"x": torch.float32, "weight": torch.float32},
        options={},
        dims={"tokens": tokens, "hidden": hidden},
        implementation=name,
        machine=CPU,
        time_us=time_us,
        spread=0.01,
        error=0.1,
        compared=("a", "b"),
    )
    return replace(made, **fields)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = tmp_path / "environment"
    made.mkdir()
    monkeypatch.setenv("OPMUX_TUNED", str(made))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    yield made
    monkeypatch.undo()
    tuning.release()


@pytest.fixture
def three():
    """Backends a, b and c: c comes first by its band."""
    targets = [lambda x, *t, value=value, **o: torch.full_like(x, value) for value in (1.0, 2.0, 3.0)]
    with backends(
        a=implementation(lambda x, *t, **o: torch.full_like(x, 1.0), deterministic=True),
        b=implementation(
            lambda x, *t, config, **o: torch.full_like(x, config["value"]),
            priority=Priority.VENDOR,
            deterministic=True,
            config=lambda arch, features: {"value": 2.0},
        ),
        c=implementation(targets[2], priority=Priority.SPECIALISED, deterministic=True),
    ):
        yield


def explained(tokens: int, hidden: int = 64):
    return opmux.explain(opmux.rms_norm, torch.ones(tokens, hidden), torch.ones(hidden))


def put(folder: Path, *rows: MeasuredRow) -> None:
    write_measured(folder / "rows.measured", rows)
    report = tuning.reload()
    assert report.refused == ()
    assert report.measured == {"rms_norm": len(rows)}


def order(tokens: int, hidden: int = 64) -> list[str]:
    return [c.name for c in explained(tokens, hidden).candidates if c.status in ("chosen", "accepted")]


@pytest.mark.usefixtures("three")
def test_a_record_of_this_point_then_predicted_times_then_bands(folder):
    assert order(128) == ["c", "b", "a", "reference"]
    put(folder, *(row("a", m, 10.0) for m in (64, 128, 256)), *(row("b", m, 20.0) for m in (64, 128, 256)))
    assert order(128) == ["a", "b", "c", "reference"], "measured side by side at this very point"
    assert order(200) == ["c", "a", "b", "reference"], "predicted: in the highest band of those with a time"
    assert order(2**17) == ["c", "b", "a", "reference"], "too far from every row"
    assert opmux.rms_norm(torch.ones(128, 64), torch.ones(64))[0, 0] == 1.0
    assert opmux.rms_norm(torch.ones(200, 64), torch.ones(64))[0, 0] == 3.0


@pytest.mark.usefixtures("three")
def test_policy_and_force_come_before_times(folder):
    put(folder, row("a", 128, 10.0), row("b", 128, 20.0))
    with opmux.policy.override(prefer=["b"]):
        assert order(128) == ["b", "a", "c", "reference"]
        assert explained(128).chosen.reason.startswith("preferred by policy; 20.0 us (measured)")
    forced = opmux.explain(opmux.rms_norm, torch.ones(128, 64), torch.ones(64), backend="b")
    assert forced.chosen.reason.startswith("asked for by backend='b'; 20.0 us (measured)")


@pytest.mark.usefixtures("three")
def test_what_explain_shows(folder):
    rows = [row("a", m, 10.0) for m in (64, 128, 256)]
    put(folder, *rows, row("b", 128, 20.0, config={"value": 5.0}), row("c", 2**16, 30.0, compared=("c",)))
    plan = explained(128)
    lines = [line.split(maxsplit=5)[-1] for line in str(plan).splitlines()[1:]]
    assert lines == [
        "10.0 us (measured)",
        "20.0 us (measured)",
        "priority 30; not predicted: its nearest row is 10.1 octaves away, the limit is 8",
        "priority 0",
    ]
    assert plan.key == "f32 f32 | steps(tokens) = 128, hidden = 64"
    data = json.loads(json.dumps(plan.as_dict()))["candidates"]
    assert [(c["name"], c["time_us"], c["time_source"]) for c in data] == [
        ("a", 10.0, "measured"), ("b", 20.0, "measured"), ("c", None, None), ("reference", None, None),
    ]  # fmt: skip
    between = explained(140)
    assert between.candidates[1].time_source == "predicted, from 3 rows"
    assert between.candidates[1].reason == f"{between.candidates[1].time_us:.1f} us (predicted, from 3 rows)"


@pytest.mark.usefixtures("three")
def test_the_config_of_the_row_is_run(folder):
    put(folder, row("a", 128, 30.0), row("b", 128, 20.0, config={"value": 5.0}))
    plan = explained(128)
    assert plan.chosen.reason == "20.0 us (measured); value 5.0 (measured here, rows.measured:7)"
    assert (plan.config, plan.config_source) == ({"value": 5.0}, "tuned")
    assert opmux.rms_norm(torch.ones(128, 64), torch.ones(64))[0, 0] == 5.0
    with opmux.policy.override(disable=["c"]):
        near, far = explained(140).chosen, explained(400).chosen
    assert near.reason.endswith("value 5.0 (measured near, rows.measured:7)")
    assert far.reason.endswith("value 2.0 (heuristic: no config was measured near enough)")


@pytest.mark.usefixtures("three")
def test_dynamic_batches_share_plans_within_a_step(folder):
    put(folder, row("a", 128, 10.0), row("b", 128, 20.0))
    opmux.rms_norm.op.drop_plans()
    for tokens in range(129, 145):
        opmux.rms_norm(torch.ones(tokens, 64), torch.ones(64))
    assert len(opmux.rms_norm.op.table) == 1
    for tokens in range(1, 2049):
        opmux.rms_norm(torch.ones(tokens, 64), torch.ones(64))
    assert len(opmux.rms_norm.op.table) <= 16 + 7 * 8


@pytest.mark.usefixtures("three")
def test_a_higher_layer_replaces_a_row_and_a_second_row_is_refused(folder, tmp_path):
    user = tmp_path / "config" / "opmux" / "tuned"
    user.mkdir(parents=True)
    write_measured(user / "old.measured", [row("a", 128, 10.0), row("b", 128, 20.0)])
    write_measured(folder / "new.measured", [row("a", 128, 30.0)])
    write_measured(folder / "newer.measured", [row("a", 128, 40.0)])
    (refused,) = tuning.reload().refused
    assert order(128) == ["b", "a", "c", "reference"]
    assert explained(128).candidates[1].reason == "30.0 us (measured)"
    assert (Path(refused.file).name, refused.line) == ("newer.measured", 4)
    assert refused.reason == (
        "rms_norm: the row expected to be the only one of its layer for this device, dtypes, options, dims and "
        "implementation, got a second one after new.measured:4; keep one"
    )


@pytest.mark.usefixtures("three")
def test_another_process_decides_as_the_one_it_adopts(folder):
    put(folder, row("a", 128, 10.0), row("b", 128, 20.0))
    text = tuning.exported()
    (folder / "rows.measured").unlink()
    tuning.reload()
    assert order(128) == ["c", "b", "a", "reference"]
    report = tuning.adopt(text)
    assert report.measured == {"rms_norm": 2}
    assert [file.layer for file in report.files if file.records] == ["adopted"]
    assert order(128) == ["a", "b", "c", "reference"]
    assert tuning.reload().measured == {"rms_norm": 2}, "reading again reads the same"
    tuning.release()
    assert order(128) == ["c", "b", "a", "reference"]


@pytest.mark.parametrize("text", ["", "[]", '{"version": 2, "files": {}}', '{"version": 1, "files": {"a.csv": 1}}'])
def test_adopting_something_else_is_refused(text):
    with pytest.raises(TunedRecordError, match=r"^adopt: `text` expected what exported"):
        tuning.adopt(text)


def test_alone_there_is_no_rank_to_follow():
    tuning.follow_rank_zero()


RANK = """
import sys
import torch.distributed as dist
import opmux
from opmux import tuning

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
before = dict(tuning.report().measured)
tuning.follow_rank_zero()
print(before, dict(tuning.report().measured))
dist.destroy_process_group()
"""


def test_every_rank_follows_rank_zero(folder, tmp_path):
    put(folder, row("a", 128, 10.0), row("b", 128, 20.0))
    (tmp_path / "nothing").mkdir()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(tmp_path / "meeting")],
            env={**os.environ, "OPMUX_TUNED": str(folder if rank == 0 else tmp_path / "nothing")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    printed = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], printed
    both = {"rms_norm": 2}
    assert [out.strip() for out, _ in printed] == [f"{both} {both}", f"{{}} {both}"]
