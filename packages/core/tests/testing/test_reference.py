"""The reference passes whole, for every op: forward, backward, mutating and ragged ones."""

import pytest

from opmux.op import OPS
from opmux.testing import run_conformance


@pytest.mark.parametrize("op", sorted(OPS))
def test_the_reference_passes(op: str) -> None:
    report = run_conformance("reference", [op], "small")
    (of_op,) = report["ops"]
    assert of_op["failures"] == []
    assert report["failed"] == 0
    assert of_op["coverage"] == 1
    assert of_op["skips"] == {}
    assert report["passed"] == of_op["cases"] > 30


def test_the_reference_passes_tiny() -> None:
    report = run_conformance("reference", ["rms_norm", "attention", "paged_attention", "quantize"], "interpreter")
    assert (report["failed"], report["skipped"]) == (0, 0)
