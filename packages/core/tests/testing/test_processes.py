"""Ops held to their references in processes of their own."""

import contextlib
import os
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from opmux.errors import InvalidArgument
from opmux.testing import run_conformance, runner, single
from opmux.testing.fitted import cases_for
from opmux.testing.processes import Lost, Returned, call_apart
from opmux.testing.runner import CASES_OF_A_SHARE, Share, shares_of

HANDS_OVER = "[__import__('opmux.testing.processes').testing.processes.hand_over(i) for i in range(3)]"
SENDER = "__import__('opmux.testing.processes').testing.processes._senders[-1]"
HALF_A_MESSAGE = f"__import__('os').write({SENDER}.fileno(), bytes([0, 0, 16, 0, 1, 2]))"
SLEEPS = "__import__('time').sleep(600)"


def test_a_process_that_dies_or_takes_too_long_fails_alone() -> None:
    good, dies = "['good']", "__import__('os')._exit(7)"
    hangs_within_a_message = f"{HANDS_OVER} and {HALF_A_MESSAGE} and {SLEEPS}"
    answers = call_apart(eval, [good, dies, SLEEPS, hangs_within_a_message], 4, 15.0, print)
    assert answers == [
        Returned(["good"]),
        Lost("its process ended without an answer, exit code 7"),
        Lost("its process was ended after 15 s without an answer"),
        Lost("its process was ended after 15 s without an answer", [0, 1, 2]),
    ]


def test_what_was_handed_over_outlives_its_process_and_is_told_of() -> None:
    told: list[str] = []
    dies, lives = f"{HANDS_OVER} and __import__('os')._exit(7)", f"{HANDS_OVER} and 'good'"
    answers = call_apart(eval, [dies, lives, "1"], 1, 60.0, told.append)
    assert answers == [
        Lost("its process ended without an answer, exit code 7", [0, 1, 2]),
        Returned("good", [0, 1, 2]),
        Returned(1),
    ]
    assert told == 3 * [dies] + 3 * [lives]


def test_a_process_that_dies_within_a_message_fails_alone() -> None:
    answers = call_apart(eval, [f"{HALF_A_MESSAGE} and __import__('os')._exit(3)", "[1]"], 1, 60.0, print)
    assert answers == [Lost("its process ended without an answer, exit code 3"), Returned([1])]


@pytest.mark.parametrize("limit_s", [None, 500.0])
def test_the_time_of_the_whole_run_ends_what_runs_and_begins_nothing(limit_s: float | None) -> None:
    answers = call_apart(eval, [SLEEPS, SLEEPS], 1, limit_s, print, total_s=3.0)
    assert answers == [
        Lost("its process was ended when the 3 s of the whole run were over without an answer"),
        Lost("its process was not begun: the 3 s of the whole run were over"),
    ]


def test_the_time_of_the_whole_run_counts_from_where_it_began() -> None:
    answers = call_apart(eval, ["1"], 1, None, print, total_s=3.0, since=time.monotonic() - 4)
    assert answers == [Lost("its process was not begun: the 3 s of the whole run were over")]


def test_what_a_run_prepares_counts_as_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    cases_for = runner.cases_for

    def slowly(*given: Any) -> Any:
        time.sleep(0.2)
        return cases_for(*given)

    monkeypatch.setattr(runner, "cases_for", slowly)
    report = run_conformance("reference", ["linear"], "interpreter", jobs=1, total_s=0.1)
    assert report["ops"][0]["failures"][0]["message"] == (
        "its process was not begun: the 0.1 s of the whole run were over"
    )


@pytest.mark.parametrize(("held", "freed"), [(single.KEPT, 0), (single.KEPT + 1, 1)])
def test_a_case_on_a_gpu_leaves_its_memory_to_the_others(
    held: int, freed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[None] = []
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda device: held)
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: told.append(None))
    monkeypatch.setattr(single, "prepare", lambda *given: 1 / 0)  # a case that fails as well
    case = cases_for("reference", "silu_mul", "small", torch.device("cpu"))[0]
    assert single.run_one("reference", case, torch.device("cuda")).status == "failed"
    assert len(told) == freed


def test_an_op_with_many_cases_is_shared_out() -> None:
    assert shares_of("linear", 2 * CASES_OF_A_SHARE - 1, 8) == [Share("linear")]
    assert shares_of("linear", 3 * CASES_OF_A_SHARE, 8) == [Share("linear", i, 3) for i in range(3)]
    assert shares_of("linear", 100 * CASES_OF_A_SHARE, 2) == [Share("linear", 0, 2), Share("linear", 1, 2)]
    assert shares_of("linear", 0, 4) == [Share("linear")]


def test_the_report_is_that_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opmux.testing.runner.CASES_OF_A_SHARE", 4)  # each op takes two processes
    told: list[tuple[str, int, int]] = []
    ops = ["silu_mul", "linear"]
    apart = run_conformance("reference", ops, "interpreter", lambda *step: told.append(step), jobs=2)
    together = run_conformance("reference", ops, "interpreter")
    for report in (apart, together):
        del report["environment"]["seconds"]
    assert apart == together
    cases = [o["cases"] for o in apart["ops"]]
    assert [step[1:] for step in told] == [(i + 1, sum(cases)) for i in range(sum(cases))]
    assert [sum(op == name for op, *_ in told) for name in ops] == cases


def test_an_op_without_an_answer_has_failed() -> None:
    report = run_conformance("reference", ["linear"], "interpreter", jobs=1, limit_s=0.01)
    (failure,) = report["ops"][0]["failures"]
    assert failure["message"] == "its process was ended after 0.01 s without an answer"
    assert failure["repro"] == "opmux conformance reference --op linear --profile interpreter"
    assert (report["failed"], report["passed"], report["ops"][0]["claimed"]) == (1, 0, 0)


@contextlib.contextmanager
def dying() -> Iterator[None]:
    """A context in which the process of a second share dies at its third case."""
    run_one, hold, left = runner.run_one, runner._hold_here, [-1]

    def run_some(*call: Any) -> Any:
        if not left[0]:
            os._exit(9)
        left[0] -= 1
        return run_one(*call)

    def hold_some(share: Share, *rest: Any) -> Any:
        left[0] = 2 if share.number else -1
        return hold(share, *rest)

    runner.run_one, runner._hold_here = run_some, hold_some
    yield
    runner.run_one, runner._hold_here = run_one, hold


def test_a_lost_share_costs_what_it_had_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opmux.testing.runner.CASES_OF_A_SHARE", 4)
    told: list[tuple[str, int, int]] = []
    good = run_conformance("reference", ["linear"], "interpreter")
    report = run_conformance(
        "reference", ["linear"], "interpreter", lambda *step: told.append(step), jobs=2, within=f"{__name__}:dying"
    )
    op, cases = report["ops"][0], good["ops"][0]["cases"]
    (failure,) = op["failures"]
    assert re.match(
        r"its process ended without an answer, exit code 9, in case .* of linear: python -c", failure["message"]
    )
    assert (op["cases"], report["failed"]) == (cases, 1)
    ran = -(-cases // 2) + 2
    assert report["passed"] == ran
    assert told[-1] == ("linear", ran, cases)


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="`jobs` expected a number of processes, at least 1, got 0"):
        run_conformance("reference", jobs=0)
    for seconds in ("limit_s", "total_s"):
        told = f"conformance: `{seconds}` ends processes of `jobs`, which is not given; give jobs=1 too"
        with pytest.raises(InvalidArgument, match=f"^{told}$"):
            run_conformance("reference", **{seconds: 3.0})
