"""Every call that `benchmarks/on_gpu.py` checks on a GPU, with its kernels played on the CPU, beside the references."""

import sys
from itertools import groupby
from pathlib import Path

import pytest
import torch
from played.launches import on

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from cases import Example, checked
from on_gpu import difference, outputs

MOST_ELEMENTS = 1 << 19
"""Of a call's tensors together: more take too long where every block is played."""


def small(example: Example) -> bool:
    """Whether a call can be played in about a second."""
    return sum(tensor.numel() for tensor in example.make("meta") if tensor is not None) <= MOST_ELEMENTS


CALLS = {op: list(found) for op, found in groupby(sorted(checked(), key=lambda e: e.op), key=lambda e: e.op)}


@pytest.mark.parametrize("op", CALLS)
def test_results_are_those_of_the_reference(op: str) -> None:
    played = [example for example in CALLS[op] if small(example)]
    assert played
    for example in played:
        with torch.no_grad(), on("sm_90"):
            found = outputs(example, "cutile", "cpu")
        wanted = outputs(example, "reference", "cpu")
        wrong = [difference(example, f, w) for f, w in zip(found, wanted, strict=True)]
        assert not any(wrong), (example.text, wrong)
