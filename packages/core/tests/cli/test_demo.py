"""`opmux demo`, around a run that is not made here."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from cli.samples import DEMO

from opmux import demo
from opmux.errors import InvalidArgument


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> dict:
    """A stand-in for `opmux.demo.run`: ``result`` is what it gives or raises, ``asked`` what it was called with."""
    made = {"result": DEMO, "asked": []}

    def stand_in(text=None, *, device=None, progress):
        made["asked"].append((text, device))
        if isinstance(made["result"], Exception):
            raise made["result"]
        for phase in ("evaluate", "train", "serve", "check"):
            progress(demo.Progress(phase, 1, 2, "loss [1.5]"))
        return made["result"]

    monkeypatch.setattr(demo, "run", stand_in)
    return made


def test_a_pass_exits_with_0_and_prints_what_it_found(opmux_cli, run) -> None:
    done = opmux_cli("demo")
    assert (done.exit_code, done.stderr) == (0, "")
    assert run["asked"] == [(None, None)]
    for said in (
        "a text: 9000 characters",
        "4.500 before, 1.700 after",
        "4.400 before, 1.900 after; a smoothed bigram model: 2.400",
        "9876 tokens/s",
        "15000 tokens/s as chosen, 10000 on the references: 1.50 x",
        "322 tokens/s",
        "39 of 40 tokens equal, 1 ties, 0 different",
        "logits differ by 2.50e-06 at most, gradients by 1.00e-07",
        "0  The [plan] is [/here]",
        "priority 0, the only candidate",
    ):
        assert said in done.stdout
    assert done.stdout.splitlines()[-1] == "passed in 42 s"


def test_text_and_device_are_passed_on(opmux_cli, run, tmp_path: Path) -> None:
    opmux_cli("demo", "--text", str(tmp_path / "a.txt"), "--device", "cpu")
    assert run["asked"] == [(tmp_path / "a.txt", torch.device("cpu"))]


def test_one_that_does_not_pass_exits_with_1_and_says_why(opmux_cli, run) -> None:
    run["result"] = dataclasses.replace(DEMO, training=dataclasses.replace(DEMO.training, held_out_after=2.5))
    done = opmux_cli("demo")
    assert done.exit_code == 1
    assert done.stderr.startswith(
        "error: the loss on the held-out text is 2.5000, expected less than the bigram model's"
    )
    assert done.stdout.splitlines()[-1] == "failed in 42 s"


def test_json_is_the_runs_own_object(opmux_cli, run) -> None:
    done = opmux_cli("demo", "--json")
    assert json.loads(done.stdout) == json.loads(json.dumps(DEMO.to_json()))


def test_a_text_that_cannot_be_read_is_wrong_use(opmux_cli, run) -> None:
    run["result"] = InvalidArgument("demo: `text` expected a UTF-8 file")
    done = opmux_cli("demo")
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", "error: demo: `text` expected a UTF-8 file\n")


def test_a_device_that_is_not_here_is_wrong_use(opmux_cli, run) -> None:
    assert opmux_cli("demo", "--device", "cuda:77").exit_code == 2
    assert run["asked"] == []
