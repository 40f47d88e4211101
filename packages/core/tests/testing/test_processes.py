"""Ops held to their references in processes of their own."""

import pytest

from opmux.errors import InvalidArgument
from opmux.testing import run_conformance
from opmux.testing.processes import call_apart


def test_a_process_that_dies_or_takes_too_long_fails_alone() -> None:
    told: list[str] = []
    good, dies, sleeps = "['good']", "__import__('os')._exit(7)", "__import__('time').sleep(600)"
    answers = call_apart(eval, [good, dies, sleeps], 3, 15.0, told.append)
    assert answers == [
        ["good"],
        "its process ended without an answer, exit code 7",
        "its process was ended after 15 s without an answer",
    ]
    assert sorted(told) == sorted([good, dies, sleeps])


def test_the_report_is_that_of_one_process() -> None:
    told: list[tuple[str, int, int]] = []
    ops = ["silu_mul", "linear"]
    apart = run_conformance("reference", ops, "interpreter", lambda *step: told.append(step), jobs=2)
    together = run_conformance("reference", ops, "interpreter")
    for report in (apart, together):
        del report["environment"]["seconds"]
    assert apart == together
    cases = [o["cases"] for o in apart["ops"]]
    assert sorted(done for _, done, _ in told)[-1] == sum(cases)
    assert sorted(op for op, *_ in told) == sorted(ops)


def test_an_op_without_an_answer_has_failed() -> None:
    report = run_conformance("reference", ["linear"], "interpreter", jobs=1, limit_s=0.01)
    (failure,) = report["ops"][0]["failures"]
    assert failure["message"] == "its process was ended after 0.01 s without an answer"
    assert failure["repro"] == "opmux conformance reference --op linear --profile interpreter"
    assert (report["failed"], report["passed"], report["ops"][0]["claimed"]) == (1, 0, 0)


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="`jobs` expected a number of processes, at least 1, got 0"):
        run_conformance("reference", jobs=0)
    with pytest.raises(InvalidArgument, match="`limit_s` ends processes of `jobs`, which is not given; give jobs=1"):
        run_conformance("reference", limit_s=3.0)
