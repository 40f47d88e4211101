"""The whole run: train, score, serve, check, compare."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from opmux.demo import corpus as text_corpus
from opmux.demo.bigram import Bigram
from opmux.demo.checks import compare_with_full_pass, compare_with_plain
from opmux.demo.corpus import Corpus
from opmux.demo.evidence import ops_used
from opmux.demo.model import Llama, LlamaConfig
from opmux.demo.report import DemoResult, GeneratedText, ServingReport, TextReport, TrainingReport
from opmux.demo.scheduling import Request
from opmux.demo.serving import Served, ServingSettings, serve
from opmux.demo.speeds import compare_speeds
from opmux.demo.training import TrainingSettings, held_out_loss, train

MOST_SCORED = 65_536
"""At most this many characters of the held-out part are scored, from its start, so that a long text takes no longer."""

Phase = Literal["evaluate", "train", "serve", "check"]


@dataclass(frozen=True)
class Progress:
    """The progress of a phase of the run."""

    phase: Phase
    done: int
    total: int
    note: str = ""
    """What is worth showing next to the bar."""


@dataclass(frozen=True)
class DemoSettings:
    """All sizes of a run; the defaults fit two CPU cores."""

    model: dict[str, int] = field(default_factory=dict)
    """Sizes of `LlamaConfig` that differ from its defaults."""
    training: TrainingSettings = field(default_factory=TrainingSettings)
    serving: ServingSettings = field(default_factory=ServingSettings)
    requests: int = 8
    threads: int | None = 1
    """Threads on the CPU while the run lasts; None leaves torch's number.

    With a model as small as this a second thread saves a third of the time, and costs ten times as much of it where
    it has to share its core with another process.
    """

    @classmethod
    def for_device(cls, device: torch.device) -> "DemoSettings":
        """The default sizes: a larger model where there is a GPU."""
        if device.type == "cpu":
            return cls()
        return cls(
            model={"layers": 4, "heads": 8, "kv_heads": 2, "head_dim": 32, "intermediate": 768},
            training=TrainingSettings(steps=400, batch=16, seq=256, learning_rate=2e-3, warmup=40),
            serving=ServingSettings(pages=40),
        )


def run(
    text: Path | None = None,
    *,
    device: torch.device | str | None = None,
    settings: DemoSettings | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
) -> DemoResult:
    """Train a small Llama on a text, serve prompts with it, and check both.

    Args:
        text: A UTF-8 file; None takes the documentation that comes with the package.
        device: Where to run; None takes a GPU when there is one, else the CPU.
        settings: All sizes; None takes those that suit the device.
        progress: Called after each step of each phase.

    Returns:
        Losses, speeds, texts, ops and differences; `passed` says whether all is well.

    Raises:
        InvalidArgument: The text cannot be read, is not UTF-8 or is too short.
    """
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    settings = settings or DemoSettings.for_device(where)
    threads = torch.get_num_threads()
    if settings.threads is not None and where.type == "cpu":
        torch.set_num_threads(settings.threads)
    try:
        return _run(text, where, settings, progress)
    finally:
        torch.set_num_threads(threads)


def _run(
    text: Path | None, where: torch.device, settings: DemoSettings, progress: Callable[[Progress], None]
) -> DemoResult:
    started = time.perf_counter()
    seq = settings.training.seq
    corpus = text_corpus.load(text, seq)
    scored = corpus.held_out[:MOST_SCORED]
    size = len(corpus.vocabulary)
    bigram = Bigram.fitted(corpus.train, size)
    model = Llama(LlamaConfig(vocabulary=size, max_positions=seq, **settings.model), settings.training.seed).to(where)

    how = settings.training.limited_to(len(corpus.train))

    def training_step(done: int, loss: float) -> None:
        progress(Progress("train", done, how.steps, f"loss {loss:.3f}"))

    progress(Progress("evaluate", 0, 1, "held-out loss before training"))
    before = held_out_loss(model, scored, seq)
    losses, seconds = train(model, corpus, how, training_step)
    progress(Progress("evaluate", 0, 1, "held-out loss"))
    after = held_out_loss(model, scored, seq)
    progress(Progress("evaluate", 1, 1, f"held-out loss {after:.3f}, bigram {bigram.loss(scored):.3f}"))
    training = TrainingReport(
        parameters=sum(weight.numel() for weight in model.parameters()),
        steps=len(losses),
        loss_before=losses[0],
        loss_after=_mean(losses[-max(1, len(losses) // 10) :]),
        held_out_before=before,
        held_out_after=after,
        bigram=bigram.loss(scored),
        bigram_strength=bigram.strength,
        tokens_per_second=len(losses) * how.batch * seq / seconds,
        seconds=seconds,
    )

    def serving_step(done: int, total: int) -> None:
        progress(Progress("serve", done, total, "tokens"))

    def checking_step(done: int, total: int) -> None:
        progress(Progress("check", done, total, "tokens"))

    served = serve(model, list(prompts(corpus, settings.requests, seq)), settings.serving, serving_step)
    tokens = compare_with_full_pass(model, served, checking_step)
    window = scored[: seq + 1].unsqueeze(0).to(where)
    logits_difference, gradients_difference = compare_with_plain(model, window)
    first = next(corpus.batches(1, how.batch, seq, torch.Generator().manual_seed(how.seed)))
    speeds = compare_speeds(model, first.to(where))
    ops = ops_used(model, window, next(prompts(corpus, 1, seq)), settings.serving)
    return DemoResult(
        device=torch.cuda.get_device_name(where) if where.type == "cuda" else where.type,
        text=TextReport(
            corpus.source, len(corpus.train) + len(corpus.held_out), size, len(corpus.held_out), len(scored)
        ),
        training=training,
        serving=_serving_report(served, corpus, settings.serving),
        tokens=tokens,
        logits_difference=logits_difference,
        gradients_difference=gradients_difference,
        speeds=speeds,
        ops=ops,
        seconds=time.perf_counter() - started,
    )


def prompts(corpus: Corpus, count: int, seq: int) -> Iterator[Request]:
    """Requests from evenly spaced places of the held-out text, of different lengths and arrivals.

    A prompt starts with the first line that starts there, where there is one.

    Args:
        corpus: The text.
        count: How many.
        seq: Length that a prompt and what is generated after it have at most together.
    """
    newline = corpus.vocabulary.encode("\n")
    line_starts = (corpus.held_out == newline).nonzero().flatten() + 1
    for number in range(count):
        length = max(1, seq * (1 + number * 2 % 5) // 8)
        start = (len(corpus.held_out) - length) * number // count
        lines = line_starts[(line_starts >= start) & (line_starts <= len(corpus.held_out) - length)]
        start = int(lines[0]) if len(lines) else start
        prompt = corpus.held_out[start : start + length].tolist()
        new_tokens = max(1, min(seq - length, seq // 4 + number * 11 % 32))
        yield Request(number, prompt, new_tokens, arrival=4 * number)


def _serving_report(served: Served, corpus: Corpus, settings: ServingSettings) -> ServingReport:
    generated = sum(len(request.generated) for request in served.requests)
    decode = corpus.vocabulary.decode
    texts = tuple(
        GeneratedText(r.number, decode(r.prompt), decode(r.generated), r.arrival, r.joined or 0, r.left or 0)
        for r in served.requests
    )
    return ServingReport(
        generated_tokens=generated,
        prompt_tokens=sum(len(request.prompt) for request in served.requests),
        tokens_per_second=generated / served.seconds,
        seconds=served.seconds,
        steps=tuple(served.records),
        pages=settings.pages,
        pages_free_at_end=served.pages_left,
        texts=texts,
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
