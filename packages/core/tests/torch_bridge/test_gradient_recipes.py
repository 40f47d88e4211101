"""What a backward op is called with: which backend, which gradients, in which strides."""

from typing import Any

import pytest
import torch
from backends import backends, implementation
from torch_bridge.samples import gradients, sample, total

import opmux
from opmux.callpath.op import OPS
from opmux.errors import GradientRefused
from opmux.plugin import Contiguous, UnitStride
from opmux.torch_bridge import gradient_recipes


@pytest.mark.parametrize(
    ("backend", "expected"), [(None, "reference"), ("spy", "spy"), ("spy:one", "spy:one"), ("spy:two", "spy")]
)
def test_the_backend_of_the_forward_is_asked_for_in_the_backward(backend: str | None, expected: str) -> None:
    def target(*tensors: Any, **options: Any) -> Any:
        return OPS["rms_norm"].reference(*tensors, **options)

    def backward(*tensors: Any, **options: Any) -> Any:
        return OPS["rms_norm_backward"].reference(*tensors, **options)

    forwards = [implementation(target, name=name) for name in ("", "one", "two")]
    backwards = [implementation(backward, "rms_norm_backward", name=name) for name in ("", "one")]
    with backends(spy=[*forwards, *backwards]):
        opmux.policy.disable("spy")
        call = sample("rms_norm").requiring(0)
        loss = total(call(backend=backend))
        with opmux.trace() as trace:
            loss.backward()
    assert [row.backend for row in trace.rows] == [expected]


def test_a_backend_without_the_backward_leaves_it_to_the_best() -> None:
    def forward(*tensors: Any, **options: Any) -> Any:
        return OPS["rms_norm"].reference(*tensors, **options)

    call = sample("rms_norm").requiring(0)
    with backends(half=implementation(forward)):
        total(call(backend="half")).backward()
    torch.testing.assert_close(call.tensors[0].grad, gradients(call, (0,))[0])  # type: ignore[union-attr]


@pytest.mark.parametrize("shape", [(0, 8), (4, 1), (1, 1), (4, 8)])
@pytest.mark.parametrize("backend", [None, "strict"])
def test_a_forced_backend_takes_the_gradients_that_the_chosen_one_takes(
    shape: tuple[int, int], backend: str | None
) -> None:
    """``sum`` hands over a gradient of strides 0, which torch calls contiguous where the tensor is empty."""
    strides: list[tuple[int, ...]] = []

    def forward(*tensors: Any, **options: Any) -> Any:
        return OPS["rms_norm"].reference(*tensors, **options)

    def backward(*tensors: Any, **options: Any) -> Any:
        strides.append(tensors[0].stride())
        return OPS["rms_norm_backward"].reference(*tensors, **options)

    when = (UnitStride("grad_y"), Contiguous("grad_y"))
    with backends(strict=[implementation(forward), implementation(backward, "rms_norm_backward", when=when)]):
        x, weight = torch.randn(shape, requires_grad=True), torch.randn(shape[1], requires_grad=True)
        opmux.rms_norm(x, weight, backend=backend).sum().backward()
    assert strides == [torch.empty(shape).stride()]
    assert x.grad is not None
    assert x.grad.shape == x.shape


def test_a_backward_op_that_nobody_defined_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OPS["rms_norm"], "gradient", "rms_norm_undone")
    gradient_recipes.recipe_of.cache_clear()
    with pytest.raises(GradientRefused) as raised:
        sample("rms_norm").requiring(0)()
    assert str(raised.value) == (
        "rms_norm: its gradient is to come from `rms_norm_undone`, which is not an op; "
        "define that op too, or omit gradient= of rms_norm"
    )
