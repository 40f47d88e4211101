"""The reference passes whole, for every op: forward, backward, mutating and ragged ones."""

import pytest
import torch

from opmux.callpath.op import OPS
from opmux.testing import run_conformance


@pytest.mark.parametrize("op", sorted(OPS))
def test_the_reference_passes(op: str) -> None:
    report = run_conformance("reference", [op], "small")
    (of_op,) = report["ops"]
    assert of_op["failures"] == []
    assert report["failed"] == 0
    # On a GPU a reference that reads indices declares that it cannot be captured, and is not.
    uncapturable = 0 if torch.cuda.is_available() is False or OPS[op].capturable else 2
    # No larger logits are possible beside an lse that is given: their weights would be infinite.
    too_large = 1 if op == "cross_entropy_backward" else 0
    assert sum(of_op["skips"].values()) == uncapturable + too_large
    assert report["passed"] == of_op["cases"] - uncapturable - too_large > 30


def test_the_reference_passes_tiny() -> None:
    report = run_conformance("reference", ["rms_norm", "attention", "paged_attention", "quantize"], "interpreter")
    assert report["failed"] == 0
    assert report["passed"] > 100
