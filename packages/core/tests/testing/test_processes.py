"""Ops held to their references in processes of their own."""

from typing import Any

import pytest

from opmux.errors import InvalidArgument
from opmux.testing import run_conformance
from opmux.testing.processes import Lost, call_apart
from opmux.testing.runner import CASES_OF_A_SHARE, Share, shares_of


def test_a_process_that_dies_or_takes_too_long_fails_alone() -> None:
    told: list[str] = []
    good, dies, sleeps = "['good']", "__import__('os')._exit(7)", "__import__('time').sleep(600)"
    answers = call_apart(eval, [good, dies, sleeps], 3, 15.0, told.append)
    assert answers == [
        ["good"],
        Lost("its process ended without an answer, exit code 7"),
        Lost("its process was ended after 15 s without an answer"),
    ]
    assert sorted(told) == sorted([good, dies, sleeps])


def test_what_was_handed_over_outlives_its_process() -> None:
    hands_over = "[__import__('opmux.testing.processes').testing.processes.hand_over(i) for i in range(3)]"
    (answer,) = call_apart(eval, [f"{hands_over} and __import__('os')._exit(7)"], 1, 60.0, print)
    assert answer == Lost("its process ended without an answer, exit code 7", [0, 1, 2])


def test_a_process_that_dies_within_a_message_fails_alone() -> None:
    sender = "__import__('opmux.testing.processes').testing.processes._senders[-1]"
    breaks_off = f"__import__('os').write({sender}.fileno(), bytes([0, 0, 16, 0, 1, 2])) and __import__('os')._exit(3)"
    answers = call_apart(eval, [breaks_off, "[1]"], 1, 60.0, print)
    assert answers == [Lost("its process ended without an answer, exit code 3"), [1]]


def test_the_time_of_the_whole_run_ends_what_runs_and_begins_nothing() -> None:
    sleeps = "__import__('time').sleep(600)"
    ended, not_begun = call_apart(eval, [sleeps, sleeps], 1, None, print, total_s=3.0)
    assert isinstance(ended, Lost)
    assert ended.why.startswith("its process was ended after ")
    assert not_begun == Lost("its process was not begun: the 3 s of the whole run were over")


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
    assert sorted(done for _, done, _ in told)[-1] == sum(cases)
    assert sorted({op for op, *_ in told}) == sorted(ops)


def test_an_op_without_an_answer_has_failed() -> None:
    report = run_conformance("reference", ["linear"], "interpreter", jobs=1, limit_s=0.01)
    (failure,) = report["ops"][0]["failures"]
    assert failure["message"] == "its process was ended after 0.01 s without an answer"
    assert failure["repro"] == "opmux conformance reference --op linear --profile interpreter"
    assert (report["failed"], report["passed"], report["ops"][0]["claimed"]) == (1, 0, 0)


def test_a_lost_share_costs_what_it_had_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = run_conformance("reference", ["linear"], "interpreter"), Lost("its process died", [])

    def lose_one(function: Any, shares: list[Share], *rest: Any) -> list[Any]:
        held = [function(share) for share in shares]
        bad.parts = held[1].outcomes[:2]
        return [held[0], bad]

    monkeypatch.setattr("opmux.testing.runner.CASES_OF_A_SHARE", 4)
    monkeypatch.setattr("opmux.testing.processes.call_apart", lose_one)
    report = run_conformance("reference", ["linear"], "interpreter", jobs=2)
    op, whole = report["ops"][0], good["ops"][0]
    assert [failure["message"] for failure in op["failures"]] == ["its process died"]
    assert op["cases"] == whole["cases"]
    assert report["failed"] == 1
    assert report["passed"] + report["skipped"] == -(-whole["cases"] // 2) + 2


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="`jobs` expected a number of processes, at least 1, got 0"):
        run_conformance("reference", jobs=0)
    for seconds in ("limit_s", "total_s"):
        told = f"conformance: `{seconds}` ends processes of `jobs`, which is not given; give jobs=1 too"
        with pytest.raises(InvalidArgument, match=f"^{told}$"):
            run_conformance("reference", **{seconds: 3.0})
