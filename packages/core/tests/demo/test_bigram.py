"""The smoothed bigram model, against counts made by hand."""

import math

import pytest
import torch

from opmux.demo.bigram import STRENGTHS, Bigram


def test_probabilities_by_hand() -> None:
    # a b a b b, of the vocabulary a b c: P(a) = 3/8, P(b) = 4/8, P(c) = 1/8. After a: b twice. After b: a, b.
    model = Bigram.of(torch.tensor([0, 1, 0, 1, 1]), vocabulary=3, strength=2.0)
    expected = [
        [(0 + 2 * 3 / 8) / 4, (2 + 2 * 4 / 8) / 4, (0 + 2 * 1 / 8) / 4],
        [(1 + 2 * 3 / 8) / 4, (1 + 2 * 4 / 8) / 4, (0 + 2 * 1 / 8) / 4],
        [3 / 8, 4 / 8, 1 / 8],
    ]
    torch.testing.assert_close(model.log_probabilities.exp(), torch.tensor(expected, dtype=torch.float64))


def test_loss_by_hand() -> None:
    model = Bigram.of(torch.tensor([0, 1, 0, 1, 1]), vocabulary=3, strength=2.0)
    # b -> a, a -> c
    assert model.loss(torch.tensor([1, 0, 2])) == pytest.approx(-(math.log(1.75 / 4) + math.log(0.25 / 4)) / 2)


def test_rows_are_distributions() -> None:
    ids = torch.randint(7, (200,), generator=torch.Generator().manual_seed(0))
    model = Bigram.fitted(ids, 9)
    torch.testing.assert_close(model.log_probabilities.exp().sum(1), torch.ones(9, dtype=torch.float64))
    assert model.strength in STRENGTHS


def test_strength_is_that_of_the_best_loss_within_the_train_part() -> None:
    generator = torch.Generator().manual_seed(0)
    regular = torch.arange(400) % 5
    noise = torch.randint(5, (400,), generator=generator)
    # Where the next character is certain, little smoothing; where nothing is to be learnt from pairs, much.
    assert Bigram.fitted(regular, 5).strength == min(STRENGTHS)
    assert Bigram.fitted(noise, 5).strength == max(STRENGTHS)
