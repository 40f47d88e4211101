"""Builds in the background: what runs meanwhile, the change when they are over, and a helper process that fails."""

import logging
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from backends import backends, implementation

import opmux
from opmux.plugin import Build, BuildDeferred, InvalidArgument, builds_deferred
from opmux.policy import ENVIRONMENT
from opmux.running import background, build_process, execution, modes

X, W = torch.randn(4, 8), torch.ones(8)


def slow(folder: Path, function: str = "build") -> Callable[..., Any]:
    """A target whose kernel is a file in a folder; it returns twos."""

    def target(x: torch.Tensor, weight: torch.Tensor, *, eps: float, weight_offset: float) -> torch.Tensor:
        kernel = folder / "kernel"
        if not kernel.exists():
            if builds_deferred():
                raise BuildDeferred(Build("kernel rows", str(folder), f"slow_builds:{function}", (str(folder),)))
            kernel.write_text("built in the call")
        return torch.full_like(x, 2)

    return target


def ones(x: torch.Tensor, weight: torch.Tensor, *, eps: float, weight_offset: float) -> torch.Tensor:
    return torch.ones_like(x)


def value(*arguments: Any, **options: Any) -> float:
    """The first element of a call's result: 2 from the slow backend, 1 from the other."""
    return float(opmux.rms_norm(*(arguments or (X, W)), **options)[0, 0])


def until(over: Callable[[], bool]) -> None:
    """Wait until something has happened in another process."""
    deadline = time.monotonic() + 60
    while not over():
        assert time.monotonic() < deadline, "nothing happened for 60 s"
        time.sleep(0.01)


def gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True


def finished(folder: Path) -> bool:
    return background._jobs[str(folder)].finished


@pytest.fixture(autouse=True)
def in_background(tmp_path: Path) -> Iterator[None]:
    opmux.policy.build("background")
    yield
    (tmp_path / "go").touch()  # nobody waits for the helper process any more
    background._jobs.clear()
    background._awaited.clear()
    background._built_in_call.clear()


def test_a_ready_backend_runs_until_the_best_one_is_built(tmp_path: Path, messages: pytest.LogCaptureFixture) -> None:
    with backends(a=implementation(slow(tmp_path), priority=90), b=implementation(ones, priority=50)):
        with opmux.trace() as trace:
            assert [value() for _ in range(3)] == [1, 1, 1]
            explained = opmux.explain(opmux.rms_norm, X, W)
            (tmp_path / "go").touch()
            until(lambda: finished(tmp_path))
            assert [value() for _ in range(2)] == [2, 2]
        assert [value() for _ in range(2)] == [2, 2]
    assert (tmp_path / "kernel").read_text() == "built in the background"
    assert [(r.backend, r.calls, r.fallbacks, r.awaiting) for r in trace.rows] == [("a", 2, 0, 0), ("b", 3, 0, 3)]
    waiting = next(c for c in explained.candidates if c.name == "a")
    assert (explained.chosen.name, waiting.status) == ("b", "building")  # type: ignore[union-attr]
    assert waiting.reason == "kernel rows is being built in the background"
    assert messages.messages[-3] == (
        "rms_norm: a lacks kernel rows, which is built in the background; the next choice runs until then"
    )
    assert messages.messages[-2].startswith("kernel rows was built in the background, in ")
    assert messages.messages[-1] == "rms_norm: a is built, and runs from now on"


def ones_into(x: torch.Tensor, *arguments: Any, out: torch.Tensor | None = None, **options: Any) -> torch.Tensor:
    return torch.ones_like(x) if out is None else out.fill_(1)


@pytest.mark.parametrize("calls", [0, 1, 2])
def test_a_tensor_to_write_into_gets_the_result_of_the_change(tmp_path: Path, calls: int) -> None:
    best, other = implementation(slow(tmp_path), priority=90), implementation(ones_into, priority=50, takes_out=True)
    with backends(a=best, b=other):
        assert value() == 1
        assert [value(X, W, out=torch.zeros(4, 8)) for _ in range(calls)] == [1] * calls
        (tmp_path / "go").touch()
        until(lambda: finished(tmp_path))
        outs = [torch.zeros(4, 8) for _ in range(2)]
        assert [value(X, W, out=out) for out in outs] == [2, 2]


def test_without_the_policy_the_call_builds(tmp_path: Path) -> None:
    opmux.policy.build("wait")
    with backends(a=implementation(slow(tmp_path), priority=90)):
        assert value() == 2
    assert (tmp_path / "kernel").read_text() == "built in the call"


@pytest.mark.parametrize("way", ["strict", "deterministic", "forced", "bound", "nothing else"])
def test_calls_that_wait_all_the_same(tmp_path: Path, way: str) -> None:
    with backends(a=implementation(slow(tmp_path), priority=90, deterministic=True)):
        if way == "strict":
            opmux.policy.strict()
            assert value() == 2
        elif way == "deterministic":
            torch.use_deterministic_algorithms(True)
            try:
                assert value() == 2
            finally:
                torch.use_deterministic_algorithms(False)
        elif way == "forced":
            assert value(backend="a") == 2
        elif way == "bound":
            assert float(opmux.rms_norm.bind(X, W)(X, W)[0, 0]) == 2
        else:
            opmux.policy.disable("reference")
            assert value() == 2
    assert (tmp_path / "kernel").read_text() == "built in the call"


def test_deterministic_mode_ends_the_wait(tmp_path: Path) -> None:
    with backends(a=implementation(slow(tmp_path), priority=90, deterministic=True), b=implementation(ones)):
        assert value() == 1
        torch.use_deterministic_algorithms(True)
        try:
            assert value() == 2
        finally:
            torch.use_deterministic_algorithms(False)
        (tmp_path / "go").touch()
        until(lambda: finished(tmp_path))


def test_a_kernel_missing_at_a_later_call_of_a_plan_is_built_in_the_background_too(tmp_path: Path) -> None:
    (tmp_path / "kernel").touch()
    with backends(a=implementation(slow(tmp_path), priority=90), b=implementation(ones, priority=50)):
        assert [value() for _ in range(2)] == [2, 2]
        (tmp_path / "kernel").unlink()
        assert [value() for _ in range(2)] == [1, 1]
        (tmp_path / "go").touch()
        until(lambda: finished(tmp_path))
        assert value() == 2


def test_nothing_changes_during_a_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with backends(a=implementation(slow(tmp_path), priority=90), b=implementation(ones, capturable=True)):
        assert [value() for _ in range(2)] == [1, 1]
        (tmp_path / "go").touch()
        until(lambda: finished(tmp_path))
        with monkeypatch.context() as patch:
            patch.setattr(modes, "capturing", lambda: True)
            assert value() == 1
        assert value() == 2


def test_a_build_that_fails_leaves_the_next_choice(tmp_path: Path, messages: pytest.LogCaptureFixture) -> None:
    with backends(a=implementation(slow(tmp_path, "refuse"), priority=90), b=implementation(ones, priority=50)):
        assert value() == 1
        until(lambda: finished(tmp_path))
        assert [value() for _ in range(2)] == [1, 1]
        (record,) = opmux.quarantined()
        assert (record.name, record.scope) == ("a", "arch")
        assert record.reason == (
            f"kernel rows could not be built in the background: RuntimeError: no such instruction in {tmp_path.name}"
        )
    assert [m.levelno for m in messages.records if "quarantined" in m.message] == [logging.WARNING]


def test_a_build_that_kills_its_process_twice_is_given_up(tmp_path: Path) -> None:
    with backends(a=implementation(slow(tmp_path, "die"), priority=90), b=implementation(ones, priority=50)):
        assert value() == 1
        until(lambda: finished(tmp_path))
        assert value() == 1
        (record,) = opmux.quarantined()
        assert (record.name, record.scope) == ("a", "plan")
        assert "the process that built it ended 2 times: exit code -9; exit code -9" in record.reason
    assert len(list(tmp_path.glob("death-*"))) == 2


def test_a_killed_helper_is_replaced(tmp_path: Path) -> None:
    with backends(a=implementation(slow(tmp_path, "die_once"), priority=90), b=implementation(ones, priority=50)):
        assert value() == 1
        until(lambda: finished(tmp_path))
        assert value() == 2
    assert opmux.quarantined() == ()


def test_a_helper_killed_from_outside_while_it_builds(tmp_path: Path) -> None:
    with backends(a=implementation(slow(tmp_path), priority=90), b=implementation(ones, priority=50)):
        assert value() == 1
        until(lambda: build_process.helper().pid is not None)
        os.kill(build_process.helper().pid, 9)  # type: ignore[arg-type]
        assert value() == 1
        (tmp_path / "go").touch()
        until(lambda: finished(tmp_path))
        assert value() == 2


def test_no_process_can_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: Any, **options: Any) -> Any:
        raise OSError("Resource temporarily unavailable")

    build_process.helper().stop()
    monkeypatch.setattr(build_process.subprocess, "Popen", refused)
    with backends(a=implementation(slow(tmp_path), priority=90), b=implementation(ones, priority=50)):
        assert value() == 1
        until(lambda: finished(tmp_path))
        assert value() == 1
        (record,) = opmux.quarantined()
    assert "no process can be started to build it: Resource temporarily unavailable" in record.reason


def test_a_build_that_answers_too_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_process, "PATIENCE_S", 0.01)
    with backends(a=implementation(slow(tmp_path), priority=90), b=implementation(ones, priority=50)):
        assert value() == 1
        until(lambda: finished(tmp_path))
        assert value() == 1
        (record,) = opmux.quarantined()
    assert record.reason.endswith("ended 2 times: not done within 0.01 s; not done within 0.01 s")


def test_arguments_that_cannot_be_sent(tmp_path: Path) -> None:
    def target(x: torch.Tensor, weight: torch.Tensor, *, eps: float, weight_offset: float) -> torch.Tensor:
        raise BuildDeferred(Build("kernel rows", str(tmp_path), "slow_builds:build", (lambda: None,)))

    with backends(a=implementation(target, priority=90), b=implementation(ones, priority=50)):
        assert value() == 1
        # The first call has it quarantined already, if it learns at once that nothing can be sent.
        until(lambda: bool(opmux.quarantined()) or finished(tmp_path))
        assert value() == 1
        (record,) = opmux.quarantined()
    assert "its arguments cannot be sent to a process" in record.reason


def test_what_was_built_and_is_not_found_is_built_by_the_call(
    tmp_path: Path, messages: pytest.LogCaptureFixture
) -> None:
    with backends(a=implementation(slow(tmp_path, "build_nothing"), priority=90), b=implementation(ones)):
        assert value() == 1
        until(lambda: finished(tmp_path))
        assert value() == 2
    assert (tmp_path / "kernel").read_text() == "built in the call"
    assert "kernel rows was built in the background and is not found here: the call builds it" in messages.messages


def test_one_build_serves_every_plan_that_awaits_it(tmp_path: Path) -> None:
    y = torch.randn(4, 16)
    with backends(
        a=implementation(slow(tmp_path), priority=90, features=(opmux.plugin.Exact("hidden"),)), b=implementation(ones)
    ):
        assert [value(), value(y, torch.ones(16))] == [1, 1]
        assert len(background._jobs) == 1
        (tmp_path / "go").touch()
        until(lambda: finished(tmp_path))
        assert [value(), value(y, torch.ones(16))] == [2, 2]


def test_a_forked_process_builds_afresh(tmp_path: Path) -> None:
    with backends(a=implementation(slow(tmp_path), priority=90), b=implementation(ones, priority=50)):
        assert value() == 1
        background._after_fork()
        assert value() == 1
        assert len(background._jobs) == 1
        (tmp_path / "go").touch()  # not before: the first process would build it for the call above
        until(lambda: finished(tmp_path))
        assert value() == 2


def test_a_deferred_build_tells_what_is_missing() -> None:
    error = BuildDeferred(Build("kernel rows", "1", "a:b"))
    assert str(error) == "kernel rows is not built yet"
    assert pickle.loads(pickle.dumps(error.build)) == error.build


def test_the_policy_refuses_other_words(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgument) as caught:
        opmux.policy.build("later")
    assert str(caught.value) == ("policy.build: `how` expected 'wait' or 'background', got 'later'; pass one of them")
    monkeypatch.setenv("OPMUX_BUILD", "background")
    opmux.policy.reset()
    assert builds_deferred()
    with opmux.policy.override(build="wait"):
        assert not builds_deferred()
    monkeypatch.setenv("OPMUX_BUILD", "later")
    with pytest.raises(InvalidArgument) as caught:
        opmux.policy.reset()
    assert str(caught.value) == (
        "policy: `OPMUX_BUILD` expected wait or background, got 'later'; unset it or set it to background"
    )
    assert "OPMUX_BUILD" in ENVIRONMENT
    monkeypatch.delenv("OPMUX_BUILD")


ORPHAN = """
import sys, time
from opmux.running.build_process import Build, helper
helper().give(Build("kernel", "1", "slow_builds:build", (sys.argv[1],)))
while helper().pid is None:
    time.sleep(0.01)
print(helper().pid, flush=True)
time.sleep(600)
"""


def test_a_helper_ends_with_its_process_in_the_middle_of_a_build(tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHAN, str(tmp_path)], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    )
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        until((tmp_path / "begun").exists)
        parent.kill()

    until(lambda: gone(pid))


def test_a_helper_started_under_the_variable_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPMUX_BUILD", "background")
    made = build_process.Helper()
    try:
        job = made.give(Build("kernel", "key", "slow_builds:deferred", (str(tmp_path),)))
        until(lambda: job.finished)
    finally:
        made.stop()
    assert job.problem is None
    assert (tmp_path / "deferred").read_text() == "False"


def test_a_target_that_never_builds_is_quarantined_where_the_call_waits(tmp_path: Path) -> None:
    def target(x: torch.Tensor, weight: torch.Tensor, *, eps: float, weight_offset: float) -> torch.Tensor:
        raise BuildDeferred(Build("kernel rows", str(tmp_path), "slow_builds:build", (str(tmp_path),)))

    with (
        backends(a=implementation(target, priority=90)),
        pytest.raises(opmux.plugin.BackendFault, match="but this call waits for it: the target has to build it"),
    ):
        opmux.rms_norm(X, W, backend="a")


def test_a_thread_that_holds_a_replaced_table_finishes_on_it(tmp_path: Path) -> None:
    with backends(a=implementation(slow(tmp_path), priority=90), b=implementation(ones, priority=50)):
        assert value() == 1
        old = opmux.rms_norm.op.table
        (key,) = old
        meanwhile = old[key]
        opmux.policy.prefer("b")
        (tmp_path / "go").touch()
        until(lambda: finished(tmp_path))
        assert float(meanwhile(X, W, eps=1e-6, weight_offset=0.0)[0, 0]) in (1, 2)


def test_what_is_printed_while_the_process_starts_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "chatty.pth").write_text("import sys; print('hello')\n")
    (tmp_path / "sitecustomize.py").write_text("print('a lot of words')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(Path(__file__).parents[1]), *sys.path]))
    made = build_process.Helper()
    try:
        job = made.give(Build("kernel", "key", "slow_builds:deferred", (str(tmp_path),)))
        until(lambda: job.finished)
    finally:
        made.stop()
    assert job.problem is None


def test_compilers_end_with_a_process_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_process, "TRIES", 1)
    made = build_process.Helper()
    job = made.give(Build("kernel", "key", "slow_builds:compile_for_ever", (str(tmp_path),)))
    until((tmp_path / "compiler").exists)
    compiler = int((tmp_path / "compiler").read_text())
    made.stop()
    until(lambda: gone(compiler))
    until(lambda: job.finished)
    assert "ended 1 times: exit code -9" in str(job.problem)


def test_a_process_stopped_right_before_its_answer_is_read_does_not_end_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = build_process.Helper()
    ready = build_process.select.select

    def stopped_once(*waited_for: Any) -> Any:
        monkeypatch.setattr(build_process.select, "select", ready)
        made.stop()
        return waited_for[:3]

    monkeypatch.setattr(build_process.select, "select", stopped_once)
    monkeypatch.setattr(build_process, "TRIES", 1)
    first = made.give(Build("kernel", "key", "slow_builds:build", (str(tmp_path),)))
    until(lambda: first.finished)
    assert "ended 1 times: exit code -9" in str(first.problem)
    second = made.give(Build("nothing", "key", "slow_builds:build_nothing", (str(tmp_path),)))
    until(lambda: second.finished)
    made.stop()
    assert second.problem is None


def test_a_job_that_is_over_keeps_no_sources(tmp_path: Path) -> None:
    with backends(a=implementation(slow(tmp_path), priority=90), b=implementation(ones, priority=50)):
        assert value() == 1
        (tmp_path / "go").touch()
        until(lambda: finished(tmp_path))
        assert value() == 2
        assert value(torch.randn(5, 8), W) == 2  # planned again
    (job,) = background._jobs.values()
    assert job.build.arguments == ()
    assert background._awaited == {}


def test_another_implementation_is_not_blamed_for_a_build_that_is_awaited(tmp_path: Path) -> None:
    with backends(
        a=implementation(slow(tmp_path), priority=90),
        b=implementation(ones, priority=70),
        c=implementation(ones, priority=50),
    ):
        assert value() == 1
        op, table = opmux.rms_norm.op, opmux.rms_norm.op.table
        # As a thread meets it that called a's target before another one planned b's.
        late = BuildDeferred(Build("kernel rows", str(tmp_path), "slow_builds:build", (str(tmp_path),)))
        options = {"eps": 1e-6, "weight_offset": 0.0}
        assert float(execution.recover(op, late, table, (X, W), options, None)[0, 0]) == 1
        assert {place[1] for place in background._awaited} == {"a"}
    assert opmux.quarantined() == ()
