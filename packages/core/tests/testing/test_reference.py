"""The reference passes whole, for every op: forward, backward, mutating and ragged ones."""

import pytest
import torch

from opmux.callpath.op import OPS
from opmux.testing import run_conformance

NO_LARGER_NUMBERS = {"merge_attention_states": ("lse_a", "lse_b")}
"""Arguments in which larger numbers take the reference of some case out of its bounds; such a case is a skip."""


@pytest.mark.parametrize("op", sorted(OPS))
def test_the_reference_passes(op: str) -> None:
    report = run_conformance("reference", [op], "small")
    (of_op,) = report["ops"]
    assert of_op["failures"] == []
    assert report["failed"] == 0
    # On a GPU a reference that reads indices declares that it cannot be captured, and is not.
    uncapturable = 0 if torch.cuda.is_available() is False or OPS[op].capturable else 2
    skips = dict(of_op["skips"])
    limitless = sum(
        skips.pop(f"no larger numbers in `{name}` leave the reference finite and within its bounds", 0)
        for name in NO_LARGER_NUMBERS.get(op, ())
    )
    assert sum(skips.values()) == uncapturable
    assert report["passed"] == of_op["cases"] - uncapturable - limitless > 30


def test_the_reference_passes_tiny() -> None:
    report = run_conformance("reference", ["rms_norm", "attention", "paged_attention", "quantize"], "interpreter")
    assert report["failed"] == 0
    assert report["passed"] > 100
