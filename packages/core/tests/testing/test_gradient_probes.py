"""The probes of gradients find what is wrong in a backward, and judge references that autograd cannot differentiate."""

from typing import Any

from backends import plugin
from torch import Tensor

import opmux
from opmux.callpath.op import OPS
from opmux.definition import define_op
from opmux.dtypes import Real
from opmux.plugin import Implementation
from opmux.plugins.loading import temporary_plugin
from opmux.testing import run_conformance


def test_gradient_scaled_end_to_end() -> None:
    """The forward's own cases see it too, through autograd."""

    def backward(*tensors: Tensor, **options: Any) -> tuple[Tensor, ...]:
        grad, *rest = opmux.silu_mul_backward.reference(*tensors, **options)
        return (1.01 * grad, *rest)

    forward = Implementation(op="silu_mul", target=opmux.silu_mul.reference)
    wrong = Implementation(op="silu_mul_backward", target=backward)
    with temporary_plugin(plugin(forward, wrong), "kernel"):
        (report,) = run_conformance("kernel", ["silu_mul"], "small")["ops"]
    assert {f["check"] for f in report["failures"]} == {"gradient"}


def test_a_wrong_backward_of_theirs_fails() -> None:
    """Written by hand, with a factor too much: the measure of every backend's gradients would be wrong."""

    @define_op(gradient="kit_square_backward")
    def kit_square(x: Real[Tensor, "rows width"]) -> Real[Tensor, "rows width"]:
        """Square."""
        return (x * x).contiguous()

    @define_op(outputs=("grad_x",))
    def kit_square_backward(
        grad_out: Real[Tensor, "rows width"], x: Real[Tensor, "rows width"], *, output_mask: tuple[bool] = (True,)
    ) -> Real[Tensor, "rows width"]:
        """Its gradient, wrong."""
        return (grad_out * x).contiguous()

    try:
        report = run_conformance("reference", ["kit_square"], "interpreter")
    finally:
        for name in ("kit_square", "kit_square_backward"):
            OPS.pop(name, None)
    assert "gradient reference" in {f["check"] for f in report["ops"][0]["failures"]}


def quotients_judge(factor: float) -> set[str]:
    """The checks that fail for an op whose reference autograd cannot differentiate, its gradient times a factor."""

    @define_op(gradient="kit_square_backward")
    def kit_square(x: Real[Tensor, "rows width"]) -> Real[Tensor, "rows width"]:
        """Square."""
        return (x.detach() * x.detach()).contiguous()

    @define_op(outputs=("grad_x",))
    def kit_square_backward(
        grad_out: Real[Tensor, "rows width"], x: Real[Tensor, "rows width"], *, output_mask: tuple[bool] = (True,)
    ) -> Real[Tensor, "rows width"]:
        """Its gradient."""
        return (factor * grad_out * x).contiguous()

    try:
        report = run_conformance("reference", ["kit_square"], "interpreter")
    finally:
        for name in ("kit_square", "kit_square_backward"):
            OPS.pop(name, None)
    return {f["check"] for f in report["ops"][0]["failures"]}


def test_difference_quotients_judge_what_autograd_cannot() -> None:
    assert quotients_judge(2.0) == set()
    assert "gradient reference" in quotients_judge(2.001)


def test_a_backward_that_raises_is_the_targets_fault() -> None:
    def backward(*tensors: Tensor, **options: Any) -> tuple[Tensor, ...]:
        raise ArithmeticError("no slope")

    forward = Implementation(op="silu_mul", target=opmux.silu_mul.reference)
    wrong = Implementation(op="silu_mul_backward", target=backward)
    with temporary_plugin(plugin(forward, wrong), "kernel"):
        (report,) = run_conformance("kernel", ["silu_mul"], "interpreter")["ops"]
    assert report["failures"]
    assert all("in the backward: " in f["message"] for f in report["failures"])
    assert any("no slope" in f["message"] for f in report["failures"])
