"""What records do to the call path: what is chosen, what a key holds, what a reload does, and what it all costs."""

import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch

import opmux
from opmux import tuning
from opmux.callpath.names import TUNED_CELL
from opmux.plugin import Implementation, hookimpl
from opmux.plugins import loading

WEIGHT = torch.ones(64)
PLAIN, TUNABLE = 2.0, 1.0


def ran(tokens: int, **options: Any) -> float:
    """Which implementation ran: each fills its result with a number of its own."""
    return float(opmux.rms_norm(torch.ones(tokens, 64), WEIGHT, **options)[0, 0])


def test_a_record_that_compared_two_picks(mine, folder: Path, put, row: Callable) -> None:
    put(folder / "records.csv", row(), row(dims="tokens=512;hidden=64", backend="reference", config=""))
    assert ran(128) == PLAIN
    tuning.reload()
    assert ran(100) == TUNABLE
    assert mine.configs == [{"block": 64}]
    assert ran(512) == pytest.approx(1.0)
    assert opmux.explain(opmux.rms_norm, torch.ones(512, 64), WEIGHT).chosen.name == "reference"


def test_a_record_that_compared_nothing_gives_its_config_only(mine, folder: Path, put, row: Callable) -> None:
    put(folder / "records.csv", row(compared="1"))
    tuning.reload()
    assert ran(128) == PLAIN
    with opmux.policy.override(disable=["mine:plain"]):
        assert ran(128) == TUNABLE
    assert mine.configs == [{"block": 64}]
    with opmux.policy.override(disable=["mine:plain"]):
        assert float(opmux.rms_norm(torch.ones(4, 32), torch.ones(32))[0, 0]) == TUNABLE
    assert mine.configs[1:] == [{"block": 1}]  # no record of hidden=32: its own


def test_preference_comes_before_a_record_and_force_before_both(mine, folder: Path, put, row: Callable) -> None:
    put(folder / "records.csv", row())
    tuning.reload()
    with opmux.policy.override(prefer=["mine:plain"]):
        assert ran(128) == PLAIN
    assert ran(128, backend="mine:plain") == PLAIN
    assert ran(128, backend="mine") == TUNABLE
    with opmux.policy.override(disable=["mine:plain", "mine"]):
        assert ran(128) == pytest.approx(1.0)


def test_a_record_of_a_backend_that_is_not_here_changes_nothing(mine, folder: Path, put, row: Callable) -> None:
    put(folder / "records.csv", row(backend="elsewhere"))
    assert tuning.reload().refused == ()
    assert ran(128) == PLAIN


def test_a_config_that_the_target_does_not_take_is_left_away(mine, folder: Path, put, row: Callable) -> None:
    put(folder / "records.csv", row(backend="mine:plain"))
    tuning.reload()
    assert ran(128) == PLAIN
    plan = opmux.explain(opmux.rms_norm, torch.ones(128, 64), WEIGHT)
    assert (plan.config, plan.config_source) == (None, "default")
    assert plan.chosen.reason == (
        "tuned for tokens=128 (exact), records.csv:2; the tuned config is not used: mine:plain takes none"
    )


def test_a_record_without_a_config_leaves_the_heuristic(mine, folder: Path, put, row: Callable) -> None:
    put(folder / "records.csv", row(config=""))
    tuning.reload()
    assert ran(128) == TUNABLE
    assert mine.configs == [{"block": 1}]


def test_bind_takes_the_tuned_plan(mine, folder: Path, put, row: Callable) -> None:
    put(folder / "records.csv", row())
    tuning.reload()
    bound = opmux.rms_norm.bind(torch.ones(128, 64), WEIGHT)
    assert float(bound(torch.ones(3, 64), WEIGHT)[0, 0]) == TUNABLE
    assert mine.configs == [{"block": 64}]


def test_a_reload_drops_the_plans(mine, folder: Path, put, row: Callable) -> None:
    put(folder / "records.csv", row())
    tuning.reload()
    assert ran(128) == TUNABLE
    put(folder / "records.csv", row(config='{"block": 7}'))
    assert ran(128) == TUNABLE
    tuning.reload()
    assert ran(128) == TUNABLE
    assert mine.configs == [{"block": 64}, {"block": 64}, {"block": 7}]
    (folder / "records.csv").unlink()
    tuning.reload()
    assert ran(128) == PLAIN


def test_ten_thousand_shapes_make_as_many_plans_as_cells(mine, folder: Path, put, row: Callable) -> None:
    put(folder / "records.csv", *(row(dims=f"tokens={t};hidden=64") for t in (16, 256, 4096)))
    tuning.reload()
    op = opmux.rms_norm.op
    x = torch.ones(1, 1).expand(10_000, 64)
    for tokens in range(1, 10_001):
        opmux.rms_norm(x[:tokens], WEIGHT)
    assert sorted(key[-1] for key in op.table) == [
        "hidden=64 tokens<=16",
        "hidden=64 tokens<=256",
        "hidden=64 tokens>256",
    ]
    y, weight = torch.ones(1, 1).expand(3, 10_000), torch.ones(10_000)
    for hidden in range(100, 1100):
        opmux.rms_norm(y[:, :hidden], weight[:hidden])
    assert len(op.table) == 4
    assert sorted(op.table.plans) == sorted(op.table)


def test_an_op_without_records_pays_nothing(mine, folder: Path, put, row: Callable) -> None:
    before = {name: (op.state.features, op.public.__code__) for name, op in opmux.callpath.op.OPS.items()}
    foreign = "gfx942" if torch.version.hip is None else "sm_90"
    linear = row(op="linear", dtypes="x=f32;w=f32", dims="tokens=8;k=8;n=8", backend="other", arch=foreign, config="")
    put(folder / "records.csv", row(), linear)
    assert tuning.reload().ops == {"linear": 1, "rms_norm": 1}
    for name, op in opmux.callpath.op.OPS.items():
        features, code = before[name]
        if name == "rms_norm":
            assert [f.label for f in op.state.features] == [*(f.label for f in features), "tuned"]
            assert "_tuned_cell_" in repr(op.public.__code__.co_names)
        else:
            assert (op.state.features, op.public.__code__, op.tuned_features) == (features, code, ())
    # A record of an arch that this build of torch cannot run is not in the key, yet is found by explain.
    plan = opmux.explain(opmux.linear, torch.ones(8, 8), torch.ones(8, 8), arch=foreign)
    assert plan.as_dict()["chosen"] == "reference"
    assert tuning.lookup(opmux.linear.op, _call_of(opmux.linear, foreign)).note == (
        "tuned for tokens=8 (exact), records.csv:3"
    )
    (folder / "records.csv").unlink()
    tuning.reload()
    assert opmux.rms_norm.op.state.features == before["rms_norm"][0]
    assert "_tuned_cell_" not in repr(opmux.rms_norm.op.public.__code__.co_names)


def _call_of(function: Any, arch: str) -> Any:
    from opmux.arch import parse_arch
    from opmux.running.attempt import attempt_of

    x = torch.ones(8, 8)
    op = function.op
    return attempt_of(op, op.state, *op.bind_arguments((x, x), {}), arch=parse_arch(arch)).call


def test_old_functions_of_old_records_go(mine, folder: Path, put, row: Callable) -> None:
    put(folder / "records.csv", row())
    for _ in range(10):
        tuning.reload()
        assert ran(128) == TUNABLE
    gc.collect()  # frames of errors that earlier tests caught
    tuning.reload()
    assert sum(name.startswith("_tuned_cell_") for name in opmux.rms_norm.op.namespace) <= 2


def test_code_that_is_still_running_gets_the_new_records(mine, folder: Path, put, row: Callable) -> None:
    put(folder / "records.csv", row())
    tuning.reload()
    op = opmux.rms_norm.op
    running = FunctionType(op.public.__code__, op.namespace)
    running.__kwdefaults__ = op.public.__kwdefaults__
    x = torch.ones(128, 64)
    assert float(running(x, WEIGHT)[0, 0]) == TUNABLE
    put(folder / "records.csv", row(options="eps=1e-6", config='{"block": 7}'))
    tuning.reload()
    assert float(running(x, WEIGHT)[0, 0]) == TUNABLE
    assert mine.configs == [{"block": 64}, {"block": 7}]
    assert ran(128) == TUNABLE
    assert mine.configs[2:] == [{"block": 7}]


def test_lists_for_tuples_and_wrong_options_are_judged_as_ever(folder: Path, put, row: Callable) -> None:
    good = row(
        op="quantize",
        dtypes="x=f32",
        dims="batch=1;m=4;k=256",
        options="dtype=i8;block=1,128",
        backend="reference",
        config="",
    )
    put(folder / "records.csv", good)
    assert tuning.reload().ops == {"quantize": 1}
    x = torch.randn(4, 256)
    for block in ((1, 128), [1, 128]):
        q, _ = opmux.quantize(x, dtype=torch.int8, block=block)
        assert torch.equal(q, opmux.quantize.reference(x, dtype=torch.int8, block=(1, 128), scale_major="k")[0])
    for block in (3, None, (1, [2])):
        with pytest.raises(opmux.errors.InvalidArgument, match="quantize: `block` expected 2 ints"):
            opmux.quantize(x, dtype=torch.int8, block=block)


def test_records_are_read_by_the_first_call(folder: Path, put, row: Callable) -> None:
    put(folder / "records.csv", row(backend="reference", config=""))
    script = (
        "import sys, torch, opmux\n"
        "light = {f'opmux.tuning.{name}' for name in ('store', 'choice', 'estimates')}\n"
        "assert {m for m in sys.modules if m.startswith('opmux.tuning.')} == light\n"
        "x, w = torch.ones(200, 64), torch.ones(64)\n"
        "opmux.rms_norm(x, w)\n"
        "assert [key[-1] for key in opmux.rms_norm.op.table] == ['hidden=64'], list(opmux.rms_norm.op.table)\n"
        "assert opmux.tuning.report().ops == {'rms_norm': 1}\n"
        "assert opmux.tuning.TunedRecord.__name__ == 'TunedRecord'\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_code_that_a_thread_still_runs_keeps_its_names(mine, folder: Path, put, row: Callable) -> None:
    """However many reloads pass meanwhile: a thread may be kept waiting in the middle of a call."""

    def cells(names: Iterable[str]) -> set[str]:
        return {name for name in names if name.startswith(TUNED_CELL)}

    op = opmux.rms_norm.op
    put(folder / "records.csv", row())
    tuning.reload()
    running = opmux.rms_norm.__code__  # what a thread's frame holds
    used = cells(running.co_names)
    assert used
    for _ in range(4):
        tuning.reload()
    assert used <= cells(op.namespace)
    del running
    for _ in range(2):  # the function that computes keys holds the code of its time until it is collected
        gc.collect()
        tuning.reload()
    assert not used & cells(op.namespace)


def test_reloads_while_other_threads_call(folder: Path, put, row: Callable) -> None:
    class Checking:
        OPMUX_API_VERSION = 1

        @hookimpl
        def opmux_implementations(self) -> Any:
            def target(x: Any, weight: Any, *, config: Any, **options: Any) -> Any:
                return x.new_full(x.shape, config["block"])

            yield Implementation(op="rms_norm", target=target, config=lambda arch, features: {"block": 1})

    contents = [
        [row(config='{"block": 2}')],
        [row(config='{"block": 3}'), row(dims="tokens=8;hidden=64", config='{"block": 3}')],
        [row(config='{"block": 4}'), row(options="eps=0.5", config='{"block": 4}')],
        [row(dims="tokens=8;hidden=32", config='{"block": 5}')],
    ]
    failures: list[BaseException] = []
    seen: set[float] = set()
    stop = threading.Event()

    def calling(tokens: int) -> None:
        try:
            while not stop.is_set():
                seen.add(ran(tokens))
        except BaseException as error:  # what a thread raises is told by the test
            failures.append(error)

    with loading.temporary_plugin(Checking(), "checking"):
        for name, rows in enumerate(contents):
            for fields in rows:
                fields["backend"] = "checking"
            put(folder.parent / f"{name}.csv", *rows)
        threads = [threading.Thread(target=calling, args=(tokens,)) for tokens in (4, 8, 100)]
        for thread in threads:
            thread.start()
        for turn in range(40):
            (folder / "records.csv").write_text((folder.parent / f"{turn % 4}.csv").read_text())
            assert tuning.reload().refused == ()
        put(folder / "records.csv", row(backend="checking", config='{"block": 9}'))
        tuning.reload()
        stop.set()
        for thread in threads:
            thread.join()
        assert [ran(tokens) for tokens in (4, 8, 100)] == [9.0, 9.0, 9.0]
    assert failures == []
    assert seen <= {1.0, 2.0, 3.0, 4.0, 5.0, 9.0}
