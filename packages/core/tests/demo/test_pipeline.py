"""The whole run, with a model that is trained in a second."""

import json
from pathlib import Path

import pytest
import torch

from opmux.demo import DemoResult, DemoSettings, Progress, run
from opmux.demo.corpus import split
from opmux.demo.pipeline import prompts
from opmux.demo.serving import ServingSettings
from opmux.demo.training import TrainingSettings
from opmux.errors import InvalidArgument

SIZES = {"layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 8, "intermediate": 48}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text that a bigram model cannot foresee: what follows a letter depends on the one before it."""
    file = tmp_path_factory.mktemp("demo") / "text.txt"
    file.write_text("one two three four five six seven eight nine ten eleven twelve\n" * 60)
    return file


def settings(steps: int) -> DemoSettings:
    return DemoSettings(
        model=SIZES,
        training=TrainingSettings(steps=steps, batch=8, seq=32, learning_rate=1e-2, warmup=5),
        serving=ServingSettings(pages=6, chunk=8, tokens_per_step=12),
        requests=4,
    )


@pytest.fixture(scope="module")
def result(text: Path) -> tuple[DemoResult, list[Progress]]:
    seen: list[Progress] = []
    return run(text, device="cpu", settings=settings(60), progress=seen.append), seen


def test_run_passes(result: tuple[DemoResult, list[Progress]], text: Path) -> None:
    good, _ = result
    assert good.passed, good.failures
    assert good.device == "cpu"
    assert good.text.source == str(text)
    assert good.training.held_out_after < good.training.bigram < good.training.held_out_before
    assert good.training.loss_after < good.training.loss_before
    assert good.tokens.equal + good.tokens.ties == good.serving.generated_tokens > 0
    assert good.logits_difference.relative < 1e-4
    assert good.gradients_difference.relative < 1e-4
    assert len(good.serving.texts) == 4
    assert min(good.speeds.chosen, good.speeds.references) > 0
    assert all(text.prompt and text.text for text in good.serving.texts)


def test_result_is_json(result: tuple[DemoResult, list[Progress]]) -> None:
    data = json.loads(json.dumps(result[0].to_json(), allow_nan=False))
    assert data["passed"] is True
    assert data["serving"]["generated_tokens"] == result[0].serving.generated_tokens


def test_every_op_of_the_model_is_reported(result: tuple[DemoResult, list[Progress]]) -> None:
    ops = {row.op: row for row in result[0].ops}
    assert set(ops) >= {
        "rms_norm", "add_rms_norm", "linear", "apply_rope", "silu_and_mul", "write_kv_cache", "paged_attention",
        "rms_norm_backward", "add_rms_norm_backward", "linear_backward", "apply_rope_backward",
        "silu_and_mul_backward", "attention", "attention_lse", "attention_backward",
    }  # fmt: skip
    assert all(row.calls > 0 and row.backend and row.reason for row in ops.values())


def test_progress(result: tuple[DemoResult, list[Progress]]) -> None:
    _, seen = result
    phases = [step.phase for step in seen]
    assert [phase for index, phase in enumerate(phases) if phase not in phases[:index]] == [
        "evaluate",
        "train",
        "serve",
        "check",
    ]
    assert [step.done for step in seen if step.phase == "train"] == list(range(1, 61))
    assert all(0 <= step.done <= step.total for step in seen)


def test_untrained_model_fails(text: Path) -> None:
    bad = run(text, device="cpu", settings=settings(1))
    assert not bad.passed
    assert len(bad.failures) == 1
    assert bad.failures[0].startswith("the loss on the held-out text is ")


def test_number_of_threads_is_what_it_was(text: Path) -> None:
    before = torch.get_num_threads()
    inside: list[int] = []
    torch.set_num_threads(2)
    try:
        run(text, device="cpu", settings=settings(1), progress=lambda _: inside.append(torch.get_num_threads()))
        assert set(inside) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_text_that_is_no_good(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"demo: `text` expected a file that can be read, got .*absent "):
        run(tmp_path / "absent", device="cpu")


@pytest.mark.parametrize("seq", [1, 2, 5, 32, 128, 256])
@pytest.mark.parametrize("requests", [1, 3, 8, 16])
def test_prompts_fit_the_model(seq: int, requests: int) -> None:
    corpus = split("abcdefg hijk" * 400, "a test", seq)
    made = list(prompts(corpus, requests, seq))
    assert len(made) == requests
    assert all(request.prompt and request.new_tokens >= 1 for request in made)
    assert all(len(request.prompt) + request.new_tokens - 1 <= seq for request in made)


def test_prompts_start_with_lines() -> None:
    lines = "a line of text\nand one more\n"
    corpus = split(lines * 200, "a test", seq=32)
    texts = [corpus.vocabulary.decode(request.prompt) for request in prompts(corpus, 5, 32)]
    assert all(text[:3] in ("a l", "and") and text in lines * 3 for text in texts)
