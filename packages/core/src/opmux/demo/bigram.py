"""What the trained model has to beat: a smoothed bigram model of the same train part."""

from dataclasses import dataclass

import torch
from torch import Tensor

STRENGTHS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""The strengths of smoothing that are tried, in characters."""


@dataclass(frozen=True)
class Bigram:
    """P(next | previous), interpolated with the frequency of the next character.

    `P(b | a) = (count(a, b) + strength * P(b)) / (count(a) + strength)`, where
    `P(b) = (count(b) + 1) / (characters + vocabulary)`. Counts are float64.

    Source: MacKay and Peto, "A hierarchical Dirichlet language model", 1995.
    """

    log_probabilities: Tensor
    """float64[vocabulary, vocabulary], natural logarithms; the row is the previous character."""
    strength: float
    """Weight of the frequencies, in characters."""

    @classmethod
    def of(cls, ids: Tensor, vocabulary: int, strength: float) -> "Bigram":
        """Count a text.

        Args:
            ids: int64[characters].
            vocabulary: Number of different ids.
            strength: Weight of the frequencies, in characters.
        """
        singles = torch.bincount(ids, minlength=vocabulary).double()
        frequency = (singles + 1) / (len(ids) + vocabulary)
        pairs = torch.bincount(ids[:-1] * vocabulary + ids[1:], minlength=vocabulary**2).double()
        pairs = pairs.view(vocabulary, vocabulary)
        smoothed = (pairs + strength * frequency) / (pairs.sum(1, keepdim=True) + strength)
        return cls(smoothed.log(), strength)

    @classmethod
    def fitted(cls, train: Tensor, vocabulary: int) -> "Bigram":
        """Count a train part, with the strength of smoothing that suits it best.

        The strength is chosen on the last tenth of `train`, counting the rest of it; then all is counted.

        Args:
            train: int64[characters].
            vocabulary: Number of different ids.
        """
        cut = len(train) - len(train) // 10
        losses = {s: cls.of(train[:cut], vocabulary, s).loss(train[cut:]) for s in STRENGTHS}
        return cls.of(train, vocabulary, min(losses, key=losses.__getitem__))

    def loss(self, ids: Tensor) -> float:
        """The mean negative log-likelihood of each character but the first, in nats."""
        return -self.log_probabilities[ids[:-1], ids[1:]].mean().item()
