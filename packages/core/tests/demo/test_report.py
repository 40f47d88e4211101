"""When a run is good, and its form as JSON."""

import json
from dataclasses import replace
from typing import Any

import pytest

from opmux.demo.checks import Difference, TokenCheck
from opmux.demo.report import DemoResult, GeneratedText, OpUse, ServingReport, SpeedReport, TextReport, TrainingReport
from opmux.demo.scheduling import StepRecord


@pytest.fixture
def good() -> DemoResult:
    """A run that passes."""
    return DemoResult(
        device="cpu",
        text=TextReport("a test", 20_000, 13, 2000, 2000),
        training=TrainingReport(5000, 10, 3.0, 2.0, 3.1, 2.1, 2.4, 8.0, 1000.0, 1.5),
        serving=ServingReport(
            2,
            3,
            100.0,
            0.1,
            (StepRecord(0, 3, 0, (0,), (), 0, 1),),
            4,
            4,
            (GeneratedText(0, "abc", "de", 0, 0, 1),),
        ),
        tokens=TokenCheck(2, 2, 0, (), 1e-6),
        logits_difference=Difference(1e-6, 1e-7),
        gradients_difference=Difference(1e-6, 1e-7),
        speeds=SpeedReport(1500.0, 1000.0),
        ops=(OpUse("rms_norm", "cpu", "reference", 4, 0, 12.5, None, "priority 0"),),
        seconds=3.0,
    )


def test_good_run(good: DemoResult) -> None:
    assert good.passed
    assert good.failures == ()


def test_ties_are_no_failure(good: DemoResult) -> None:
    assert replace(good, tokens=TokenCheck(2, 1, 1, (), 1e-6)).passed


@pytest.mark.parametrize("loss", [2.4, 2.5, float("nan")])
def test_model_that_does_not_beat_the_bigram_model(good: DemoResult, loss: float) -> None:
    bad = replace(good, training=replace(good.training, held_out_after=loss))
    assert not bad.passed
    assert bad.failures == (
        f"the loss on the held-out text is {loss:.4f}, expected less than the bigram model's 2.4000",
    )


def test_short_text_is_named_as_a_cause(good: DemoResult) -> None:
    bad = replace(
        good,
        text=replace(good.text, characters=5000),
        training=replace(good.training, held_out_after=2.9),
    )
    assert bad.failures == (
        "the loss on the held-out text is 2.9000, expected less than the bigram model's 2.4000; "
        "5000 characters are few, 20000 are enough",
    )


def test_token_that_differs(good: DemoResult) -> None:
    bad = replace(good, tokens=TokenCheck(2, 1, 0, ("request 0, token 1: ...",), 0.3))
    assert not bad.passed
    assert bad.failures == (
        "paged serving differs from the full forward pass in 1 of 2 tokens by more than 0.0001 nats, "
        "first at request 0, token 1: ...",
    )


def test_nothing_served(good: DemoResult) -> None:
    assert replace(good, tokens=TokenCheck(0, 0, 0, (), 0.0)).failures == ("no token was served",)


def test_pages_that_were_lost(good: DemoResult) -> None:
    bad = replace(good, serving=replace(good.serving, pages_free_at_end=3))
    assert bad.failures == ("1 of 4 pages were not given back after serving",)


def test_json(good: DemoResult) -> None:
    data: dict[str, Any] = json.loads(json.dumps(good.to_json(), allow_nan=False))
    assert data["passed"] is True
    assert data["failures"] == []
    assert data["training"]["bigram"] == 2.4
    assert data["serving"]["steps"][0]["joined"] == [0]
    assert data["ops"][0]["op"] == "rms_norm"
    assert set(data) == {"passed", "failures", *vars(good)}


def test_json_of_what_is_not_finite(good: DemoResult) -> None:
    data = replace(good, logits_difference=Difference(float("inf"), float("nan"))).to_json()
    assert data["logits_difference"] == {"largest": None, "relative": None}
    json.dumps(data, allow_nan=False)
