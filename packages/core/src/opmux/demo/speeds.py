"""The speed of a training step with the chosen implementations and with the references alone, side by side."""

import copy
import statistics
import time

import torch
from torch import Tensor

import opmux
from opmux.demo.model import Llama
from opmux.demo.report import SpeedReport
from opmux.demo.training import next_character_loss

ROUNDS = 3
"""Each way has its turn this often, so that a machine whose speed drifts slows both alike."""

STEPS = 3
"""Steps that are timed in a turn, after one in which the plans are made."""


def compare_speeds(model: Llama, windows: Tensor) -> SpeedReport:
    """Time passes with gradients, by turns as opmux chooses and with every op on its reference.

    Args:
        model: The model, which is left as it is.
        windows: int64[batch, seq + 1], on the model's device.
    """
    trained = copy.deepcopy(model)
    chosen: list[float] = []
    references: list[float] = []
    for _ in range(ROUNDS):
        chosen += _turn(trained, windows)
        with opmux.policy.override(prefer=["reference"]):
            references += _turn(trained, windows)
    tokens = windows[:, 1:].numel()
    return SpeedReport(tokens / statistics.median(chosen), tokens / statistics.median(references))


def _turn(model: Llama, windows: Tensor) -> list[float]:
    """The seconds of each step."""
    times = []
    for _ in range(STEPS + 1):
        started = time.perf_counter()
        torch.autograd.grad(next_character_loss(model, windows), list(model.parameters()))
        if windows.is_cuda:
            torch.cuda.synchronize(windows.device)
        times.append(time.perf_counter() - started)
    return times[1:]
