"""What a report says of itself."""

import dataclasses
import json

import pytest

from opmux.bench.results import CaseResult, Ceilings, Contender, Left, Report, spread, verdict

GOOD = Contender(
    "rows", "implementation", "p 1", True, 3, 10.0, 9.0, 12.0, 9.5, 11.0, 1.1, "faster", None, 5.0, 0.5, 0.001
)  # fmt: skip
PEER = dataclasses.replace(GOOD, name="torch eager", kind="peer", chosen=False)


def report(*contenders: Contender, left: tuple[Left, ...] = ()) -> Report:
    case = CaseResult("rms_norm", "small", "x", None, 64, "memory", 5.0, contenders, left)
    return Report("cpu", "cpu", "small", "float32", "2", 1, Ceilings(1.0, 1.0), (case,), ())


@pytest.mark.parametrize(
    ("ratio", "word"), [(1.0, "equal"), (1.02, "equal"), (0.98, "equal"), (1.03, "faster"), (0.97, "slower")]
)
def test_within_two_percent_is_equal(ratio: float, word: str) -> None:
    assert verdict(ratio) == word


def test_a_spread_is_median_extremes_and_quartiles() -> None:
    assert spread([5.0, 1.0, 4.0, 2.0, 3.0]) == (3.0, 1.0, 5.0, 2.0, 4.0)
    assert spread([7.0]) == (7.0, 7.0, 7.0, 7.0, 7.0)


def test_no_time_is_a_failure() -> None:
    assert report(dataclasses.replace(GOOD, ratio=0.01, verdict="slower"), PEER).passed


@pytest.mark.parametrize("difference", [0.2, float("inf"), float("nan")])
def test_a_wrong_result_is_a_failure_of_an_implementation(difference: float) -> None:
    wrong = dataclasses.replace(GOOD, difference=difference)
    assert report(wrong, PEER).failures == (
        f"rms_norm, small: rows: its result differs from the reference's by {difference:.3g} of the largest magnitude",
    )
    assert report(GOOD, dataclasses.replace(PEER, difference=difference)).passed


def test_one_that_raised_is_a_failure_if_it_is_an_implementation() -> None:
    raised = Left("ck", "implementation", "failed", "RuntimeError: no")
    assert report(GOOD, left=(raised,)).failures == ("rms_norm, small: ck: RuntimeError: no",)
    assert report(GOOD, left=(dataclasses.replace(raised, kind="peer"),)).passed
    assert report(GOOD, left=(dataclasses.replace(raised, status="rejected"),)).passed


def test_a_run_that_timed_no_implementation_proves_nothing() -> None:
    assert report(PEER).failures == ("no implementation was timed: nothing that was asked for implements rms_norm",)
    rejected = Left("ck", "implementation", "rejected", "arch")
    assert report(PEER, left=(rejected,)).failures == ("no implementation was timed",)
    assert not report().passed


def test_a_report_is_plain_data() -> None:
    data = report(GOOD, left=(Left("ck", "implementation", "rejected", "arch"),)).as_dict()
    assert data["passed"]
    assert data["cases"][0]["contenders"][0]["median_us"] == 10.0
    assert data["cases"][0]["left"][0]["reason"] == "arch"


def test_a_report_is_read_back_from_its_json() -> None:
    made = report(GOOD, PEER, left=(Left("ck", "implementation", "rejected", "arch"),))
    assert Report.from_dict(json.loads(json.dumps(made.as_dict()))) == made
