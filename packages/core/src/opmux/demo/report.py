"""The result of a run of the demo: plain data, and whether it passed."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from opmux.demo.checks import TIE, Difference, TokenCheck
from opmux.demo.scheduling import StepRecord

ENOUGH_TEXT = 20_000
"""With at least this many characters the model learned enough to beat the bigram model, in trials."""


@dataclass(frozen=True)
class TextReport:
    """What was read."""

    source: str
    characters: int
    vocabulary: int
    held_out: int
    """Characters in the held-out part."""
    held_out_scored: int
    """Characters of it that both losses are taken over."""


@dataclass(frozen=True)
class TrainingReport:
    """How the model learned; losses are in nats per character."""

    parameters: int
    steps: int
    loss_before: float
    """Of the first batch."""
    loss_after: float
    """Mean over the last tenth of the steps."""
    held_out_before: float
    held_out_after: float
    bigram: float
    """Of the smoothed bigram model of the train part, on the same held-out characters."""
    bigram_strength: float
    tokens_per_second: float
    seconds: float


@dataclass(frozen=True)
class SpeedReport:
    """Tokens per second of a training step without its optimizer, the median of steps taken by turns."""

    chosen: float
    """With the implementations that opmux chooses."""
    references: float
    """With every op on its reference."""


@dataclass(frozen=True)
class GeneratedText:
    """One request, as text."""

    number: int
    prompt: str
    text: str
    """What was generated after the prompt."""
    arrived: int
    """Step number, as the next two."""
    joined: int
    left: int


@dataclass(frozen=True)
class ServingReport:
    """How the prompts were served."""

    generated_tokens: int
    prompt_tokens: int
    tokens_per_second: float
    """Generated tokens."""
    seconds: float
    steps: tuple[StepRecord, ...]
    pages: int
    pages_free_at_end: int
    texts: tuple[GeneratedText, ...]


@dataclass(frozen=True)
class OpUse:
    """One op of the model: what ran it, how often, and why."""

    op: str
    arch: str
    backend: str
    calls: int
    fallbacks: int
    host_us: float
    device_us: float | None
    reason: str
    """Why this implementation was chosen."""


@dataclass(frozen=True)
class DemoResult:
    """The whole result of a run."""

    device: str
    text: TextReport
    training: TrainingReport
    serving: ServingReport
    tokens: TokenCheck
    """Paged serving against the full forward pass."""
    logits_difference: Difference
    """opmux against plain PyTorch, on held-out text."""
    gradients_difference: Difference
    speeds: SpeedReport
    ops: tuple[OpUse, ...]
    """From separate calls after the run: one pass with gradients, one without, and one request served."""
    seconds: float

    @property
    def failures(self) -> tuple[str, ...]:
        """The reasons why the run failed; empty if it passed."""
        reasons = []
        # Written so that NaN fails.
        if not self.training.held_out_after < self.training.bigram:
            short = self.text.characters < ENOUGH_TEXT
            hint = f"; {self.text.characters} characters are few, {ENOUGH_TEXT} are enough" if short else ""
            reasons.append(
                f"the loss on the held-out text is {self.training.held_out_after:.4f}, "
                f"expected less than the bigram model's {self.training.bigram:.4f}{hint}"
            )
        if self.tokens.different:
            reasons.append(
                f"paged serving differs from the full forward pass in {len(self.tokens.different)} of "
                f"{self.tokens.tokens} tokens by more than {TIE:g} nats, first at {self.tokens.different[0]}"
            )
        if self.tokens.equal + self.tokens.ties + len(self.tokens.different) == 0:
            reasons.append("no token was served")
        if self.serving.pages_free_at_end != self.serving.pages:
            reasons.append(
                f"{self.serving.pages - self.serving.pages_free_at_end} of {self.serving.pages} pages "
                "were not given back after serving"
            )
        return tuple(reasons)

    @property
    def passed(self) -> bool:
        """Whether the model beats the bigram model and paged serving gives the full pass's tokens."""
        return not self.failures

    def to_json(self) -> dict[str, Any]:
        """The result as JSON types, with `passed` and `failures`; numbers that are not finite become None."""
        data = {"passed": self.passed, "failures": self.failures} | asdict(self)
        plain: dict[str, Any] = _plain(data)
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
