"""The model against plain PyTorch, and its training."""

import math

import pytest
import torch
from torch import Tensor, nn

from opmux.demo import plain
from opmux.demo.checks import Difference, compare_with_plain
from opmux.demo.corpus import split
from opmux.demo.model import Llama
from opmux.demo.training import TrainingSettings, held_out_loss, train


def test_logits_and_gradients_are_those_of_plain_pytorch(model: Llama) -> None:
    windows = torch.randint(13, (3, 33), generator=torch.Generator().manual_seed(0))
    logits, gradients = compare_with_plain(model, windows)
    assert logits.largest < 1e-4
    assert gradients.relative < 1e-4
    assert all(weight.grad is None for weight in model.parameters())


def test_difference_is_seen(model: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = plain.forward
    monkeypatch.setattr(plain, "forward", lambda model, ids: forward(model, ids) * 1.01)
    logits, gradients = compare_with_plain(model, torch.randint(13, (1, 9)))
    assert logits.relative > 5e-3
    assert gradients.relative > 5e-3


def test_difference_between_tensors() -> None:
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0])
    assert Difference.between([a, a], [a, b]) == Difference(2.0, 0.5)
    assert Difference.between([torch.tensor([math.nan])], [torch.tensor([1.0])]).largest == math.inf
    zeros = torch.zeros(2)
    assert Difference.between([zeros], [zeros]) == Difference(0.0, 0.0)


def test_same_seed_same_weights(model: Llama) -> None:
    again = Llama(model.config, seed=3)
    other = Llama(model.config, seed=4)
    assert torch.equal(model.head.weight, again.head.weight)
    assert not torch.equal(model.head.weight, other.head.weight)


def test_training_lowers_the_loss_and_is_repeatable(model: Llama) -> None:
    corpus = split("abcdefghijkl" * 40, "a test", seq=16)
    settings = TrainingSettings(steps=15, batch=4, seq=16, learning_rate=1e-2, warmup=3)
    seen: list[int] = []
    losses, seconds = train(model, corpus, settings, lambda step, _loss: seen.append(step))
    assert losses[-1] < 0.5 * losses[0]
    assert seen == list(range(1, 16))
    assert seconds > 0
    again, _ = train(Llama(model.config, seed=3), corpus, settings, lambda _step, _loss: None)
    assert again == losses


def test_learning_rate_warms_up_and_falls_to_a_tenth() -> None:
    settings = TrainingSettings(steps=100, learning_rate=1.0, warmup=10)
    rates = [settings.rate(step) for step in range(101)]
    assert rates[:10] == pytest.approx([0.1 * step for step in range(1, 11)])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[100] == pytest.approx(0.1)


def test_short_text_is_trained_on_for_fewer_steps() -> None:
    settings = TrainingSettings(steps=300, batch=16, seq=128, warmup=30)
    assert settings.limited_to(1_000_000) == settings
    short = settings.limited_to(4_000)
    assert (short.steps, short.warmup) == (24, 5)  # 12 * 4,000 / 2,048 = 23.4


class Previous(nn.Module):
    """Knows nothing of the text but the token before: a fixed table of logits."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(table)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table[ids]


@pytest.mark.parametrize("characters", [2, 5, 8, 9, 10, 13, 17, 100])
@pytest.mark.parametrize("seq", [1, 7, 8])
def test_held_out_loss_counts_each_character_once(characters: int, seq: int) -> None:
    generator = torch.Generator().manual_seed(characters)
    table = torch.randn(5, 5, generator=generator)
    ids = torch.randint(5, (characters,), generator=generator)
    expected = nn.functional.cross_entropy(table[ids[:-1]], ids[1:]).item()
    assert held_out_loss(Previous(table), ids, seq, batch=3) == pytest.approx(expected, rel=1e-5)
