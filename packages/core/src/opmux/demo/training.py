"""Training, and the loss on text that was not trained on."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from opmux.demo.corpus import Corpus

MOST_PASSES = 12
"""The train part is read at most this often: after about 15 passes these models begin to memorise it."""


@dataclass(frozen=True)
class TrainingSettings:
    """How long and how fast to train; AdamW with linear warm-up, then a cosine down to a tenth."""

    steps: int = 420
    batch: int = 8
    seq: int = 128
    learning_rate: float = 4e-3
    warmup: int = 30
    weight_decay: float = 0.1
    max_norm: float = 1.0
    seed: int = 0

    def limited_to(self, characters: int) -> "TrainingSettings":
        """The same with fewer steps, if these would read a train part of this many characters too often."""
        steps = min(self.steps, math.ceil(MOST_PASSES * characters / (self.batch * self.seq)))
        return replace(self, steps=steps, warmup=min(self.warmup, math.ceil(steps / 5)))

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.learning_rate * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done)))


def next_character_loss(model: Callable[[Tensor], Tensor], windows: Tensor) -> Tensor:
    """The mean cross-entropy of each next character, in nats.

    Args:
        model: Gives logits for int64[batch, seq].
        windows: int64[batch, seq + 1].
    """
    return F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


def train(
    model: nn.Module, corpus: Corpus, settings: TrainingSettings, on_step: Callable[[int, float], None]
) -> tuple[list[float], float]:
    """Train a model in place.

    Args:
        model: The model, on its device.
        corpus: What to train on.
        settings: How.
        on_step: Called after each step with the number of steps done and the loss.

    Returns:
        The loss of each step, and the time taken in seconds.
    """
    device = next(model.parameters()).device
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": settings.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        betas=(0.9, 0.98),
    )
    generator = torch.Generator().manual_seed(settings.seed)
    losses: list[float] = []
    started = time.perf_counter()
    for step, windows in enumerate(corpus.batches(settings.steps, settings.batch, settings.seq, generator)):
        for group in optimizer.param_groups:
            group["lr"] = settings.rate(step)
        optimizer.zero_grad(set_to_none=True)
        loss = next_character_loss(model, windows.to(device))
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), settings.max_norm)
        optimizer.step()
        losses.append(loss.item())
        on_step(step + 1, losses[-1])
    return losses, time.perf_counter() - started


@torch.no_grad()
def held_out_loss(model: nn.Module, ids: Tensor, seq: int, batch: int = 32) -> float:
    """The mean negative log-likelihood of each character but the first, in nats.

    Windows overlap by half, and of each but the first only the second half counts: every character is predicted
    once, from at least `seq / 2` characters before it (as far as there are any).

    Args:
        model: Gives logits for int64[batch, seq].
        ids: int64[characters].
        seq: Length of a window.
        batch: Windows that are computed together.
    """
    device = next(model.parameters()).device
    stride = max(1, seq // 2)
    inputs, targets = ids[:-1], ids[1:]
    # (window's start, first position that counts); the last window is moved back to end with the text.
    windows, counted = [], 0
    while counted < len(inputs):
        start = max(0, min(counted - (seq - stride), len(inputs) - seq)) if counted else 0
        windows.append((start, counted - start))
        counted = min(start + seq, len(inputs))
    total = 0.0
    for first in range(0, len(windows), batch):
        group = windows[first : first + batch]
        x = torch.stack([inputs[start : start + seq] for start, _ in group]).to(device)
        y = torch.stack([targets[start : start + seq] for start, _ in group]).to(device)
        each = F.cross_entropy(model(x).transpose(1, 2), y, reduction="none")
        skip = torch.tensor([s for _, s in group], device=device)
        each = each.masked_fill(torch.arange(each.shape[1], device=device) < skip[:, None], 0.0)
        total += each.double().sum().item()
    return total / len(inputs)
