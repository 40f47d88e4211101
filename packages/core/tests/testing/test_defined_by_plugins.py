"""Ops that a plugin defines, with arguments that the kit has never heard of, are held to their references too."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from backends import backends
from torch import Tensor

from opmux.callpath.op import OPS
from opmux.definition import define_op
from opmux.dtypes import Int32, Real, Scale, accumulation_dtype
from opmux.plugin import Implementation
from opmux.testing import cases_of, run_conformance
from opmux.testing.bounds import DERIVATIONS


@pytest.fixture(scope="module")
def ops() -> Iterator[dict[str, Any]]:
    """Three ops, defined once, as a registration with torch cannot be taken back."""

    @define_op(out_dtype={"out": "x"})
    def kit_blend(
        x: Real[Tensor, "*rows width"],
        mask_scale: Scale[Tensor, "width"],
        extra: Real[Tensor, "width"] | None = None,
        *,
        sharpness: float = 1.5,
        mode: str = "soft",
    ) -> Real[Tensor, "*rows width"]:
        """Scale, bend, and add."""
        acc = accumulation_dtype(x.dtype)
        out = torch.tanh(x.to(acc) * mask_scale.to(acc) * sharpness)
        return (out if extra is None else out + extra.to(acc)).to(x.dtype).contiguous()

    @define_op(mutates=("counts",))
    def kit_count(counts: Int32[Tensor, "rows"], x: Real[Tensor, "rows width"]) -> None:
        """Count the positive elements of each row."""
        counts += (x > 0).sum(dim=1, dtype=torch.int32)

    @define_op(capturable=False)
    def kit_segment_sum(
        x: Real[Tensor, "tokens width"], offsets: Int32[Tensor, "groups+1"]
    ) -> Real[Tensor, "groups width"]:
        """Sum the rows of each group."""
        acc = accumulation_dtype(x.dtype)
        ends = offsets.tolist()
        rows = [x[a:b].to(acc).sum(0) for a, b in pairwise(ends)]
        return torch.stack(rows).to(x.dtype) if rows else x.new_zeros((0, x.shape[1]))

    made = {f.op.name: f for f in (kit_blend, kit_count, kit_segment_sum)}
    yield made
    for name in made:
        del OPS[name]


@pytest.mark.parametrize("name", ["kit_blend", "kit_count", "kit_segment_sum"])
def test_their_references_pass(ops: dict[str, Any], name: str) -> None:
    report = run_conformance("reference", [name], "small")
    assert report["ops"][0]["failures"] == []
    assert report["passed"] > 20


def test_their_options_and_optional_tensors_are_tried(ops: dict[str, Any]) -> None:
    cases = cases_of("kit_blend", "small")
    assert {"sharpness" in c.options for c in cases} == {True, False}
    assert {"extra" in c.dtypes for c in cases} == {True, False}


def test_no_derivation_is_needed(ops: dict[str, Any]) -> None:
    assert not set(ops) & set(DERIVATIONS)


def test_wrong_kernels_of_theirs_fail(ops: dict[str, Any]) -> None:
    def blend(x: Tensor, *rest: Any, sharpness: float, **options: Any) -> Tensor:
        return ops["kit_blend"].reference(x, *rest, sharpness=sharpness * 1.001, **options)

    def count(counts: Tensor, x: Tensor) -> None:
        counts += (x >= 0.5).sum(dim=1, dtype=torch.int32)

    def segment_sum(x: Tensor, offsets: Tensor) -> Tensor:
        out = ops["kit_segment_sum"].reference(x, offsets)
        if offsets.numel() > 2 and int(offsets[2]) < x.shape[0]:
            out[1] += x[offsets[2]]
        return out

    for name, target, check in (
        ("kit_blend", blend, "element bound"),
        ("kit_count", count, "integers"),
        ("kit_segment_sum", segment_sum, "element bound"),
    ):
        with backends(kernel=Implementation(op=name, target=target)):
            report = run_conformance("kernel", [name], "small")
        assert check in {f["check"] for f in report["ops"][0]["failures"]}, name
