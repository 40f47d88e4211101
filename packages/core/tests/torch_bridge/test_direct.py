"""The short way of recorded calls: which calls take it, that it computes what the long way does, and what it leaves."""

from typing import Any

import pytest
import torch
from backends import backends, implementation
from torch import Tensor

import opmux
from opmux.callpath.plans import Front, Recording
from opmux.errors import GradientRefused
from opmux.torch_bridge import routing


def leaf(*sizes: int) -> Tensor:
    return torch.randn(sizes).requires_grad_()


@pytest.fixture
def long_way(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ops of calls that took the long way."""
    taken: list[str] = []
    route = routing._route

    def routed(op: Any, *arguments: Any) -> Any:
        taken.append(op.name)
        return route(op, *arguments)

    monkeypatch.setattr(routing, "_route", routed)
    return taken


CALLS = {
    "attention": lambda: (opmux.attention, (leaf(1, 8, 4, 16), leaf(1, 8, 2, 16), leaf(1, 8, 2, 16)), {"causal": True}),
    "attention with sinks": lambda: (opmux.attention, (*(leaf(1, 8, 2, 16) for _ in "qkv"), leaf(2)), {}),
    "linear": lambda: (opmux.linear, (leaf(4, 16), leaf(8, 16)), {}),
    "linear, input only": lambda: (opmux.linear, (leaf(4, 16), torch.randn(8, 16)), {}),
    "rms_norm": lambda: (opmux.rms_norm, (leaf(4, 16), leaf(16)), {"eps": 1e-5, "weight_offset": 1.0}),
    "silu_mul": lambda: (opmux.silu_mul, (leaf(4, 16), leaf(4, 16)), {}),
    "gelu_mul": lambda: (opmux.gelu_mul, (leaf(4, 16), leaf(4, 16)), {"approximate": "tanh"}),
    "add_rms_norm": lambda: (opmux.add_rms_norm, (leaf(4, 16), leaf(4, 16), leaf(16)), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_gradients_are_those_of_the_long_way(name: str, long_way: list[str]) -> None:
    op, tensors, options = CALLS[name]()
    wanted = [t for t in tensors if t.requires_grad]

    def gradients(results: Any) -> tuple[Tensor, ...]:
        several = results if isinstance(results, tuple) else (results,)
        weights = [torch.linspace(-1, 1, r.numel()).reshape(r.shape) for r in several]
        return torch.autograd.grad(several, wanted, weights)

    expected = gradients(op(*tensors, **options, backend="reference"))
    assert long_way[0] == op.op.name
    long_way.clear()
    for _ in range(2):
        for found, right in zip(gradients(op(*tensors, **options)), expected, strict=True):
            torch.testing.assert_close(found, right)
    assert long_way == []
    assert isinstance(op.op.front[2], Recording)


@pytest.mark.parametrize("backend", [None, "reference"], ids=["short way", "long way"])
@pytest.mark.parametrize("biased", [False, True])
def test_the_gradient_of_a_wider_result_is_rounded_to_the_arguments_dtype(backend: str | None, biased: bool) -> None:
    tensors = [leaf(4, 16).bfloat16(), leaf(8, 16).bfloat16(), leaf(8).bfloat16()][: 2 + biased]
    tensors = [t.detach().requires_grad_() for t in tensors]
    weights = torch.randn(4, 8)
    for _ in range(2):
        out = opmux.linear(*tensors, out_dtype=torch.float32, backend=backend)
        assert out.dtype == torch.float32
        found = torch.autograd.grad(out, tensors, weights)
        wanted = opmux.linear_backward.reference(weights.bfloat16(), *(t.detach() for t in tensors[:2]))
        assert all(torch.equal(f, w) for f, w in zip(found, wanted, strict=False))
        out = opmux.linear(*tensors, backend=backend)
        found = torch.autograd.grad(out, tensors, weights.bfloat16())
        assert all(torch.equal(f, w) for f, w in zip(found, wanted, strict=False))


def test_a_wider_result_takes_the_short_way(long_way: list[str]) -> None:
    x, w = leaf(4, 16).bfloat16().detach().requires_grad_(), torch.randn(8, 16).bfloat16()
    for out_dtype in (torch.float32, torch.bfloat16, torch.float32, torch.bfloat16):
        opmux.linear(x, w, out_dtype=out_dtype).sum().backward()
    assert long_way == []


def test_only_some_results_are_used() -> None:
    x, residual, weight = leaf(4, 16), leaf(4, 16), leaf(16)
    for place in range(2):
        found = torch.autograd.grad(opmux.add_rms_norm(x, residual, weight)[place].sum(), (x, residual))
        right = torch.autograd.grad(opmux.add_rms_norm.reference(x, residual, weight)[place].sum(), (x, residual))
        torch.testing.assert_close(found, right)


def test_a_gradient_that_is_expanded_or_strided_is_made_contiguous() -> None:
    seen = []

    def backward(grad_out: Tensor, *tensors: Any, **options: Any) -> Any:
        seen.append(grad_out.stride())
        return opmux.linear_backward.reference(grad_out, *tensors, **options)

    x, w = leaf(4, 16), leaf(8, 16)
    with backends(a=implementation(backward, op="linear_backward")):
        opmux.linear(x, w).sum().backward()
        opmux.linear(x, w).backward(torch.randn(8, 4).T)
    assert seen == [(8, 1), (8, 1)]


def test_calls_without_a_gradient_due_have_plans_of_their_own() -> None:
    x, weight = leaf(4, 16), leaf(16)
    assert opmux.rms_norm(x, weight).requires_grad
    with torch.no_grad():
        assert not opmux.rms_norm(x, weight).requires_grad
        assert isinstance(opmux.rms_norm.op.front[2], Front)
    assert opmux.rms_norm(x, weight).requires_grad
    assert isinstance(opmux.rms_norm.op.front[2], Recording)
    for _ in range(3):
        entry = opmux.rms_norm.op.front
        opmux.rms_norm(x, weight).sum().backward()
        assert opmux.rms_norm.op.front is entry, "the guard does not change from call to call"


def test_a_target_that_fails_is_replaced() -> None:
    def broken(x: Tensor, weight: Tensor, *, eps: float, weight_offset: float) -> Tensor:
        if failing:
            raise RuntimeError("odd")
        return opmux.rms_norm.reference(x, weight, eps=eps, weight_offset=weight_offset)

    failing: list[int] = []
    x, weight = leaf(4, 16), leaf(16)
    with backends(a=implementation(broken)):
        opmux.rms_norm(x, weight)
        failing.append(1)
        opmux.rms_norm(x, weight).sum().backward()
        assert [record.name for record in opmux.quarantined()] == ["a"]
    assert x.grad is not None


def test_what_has_no_gradient_is_refused_by_name_each_time() -> None:
    q, k = leaf(4, 2, 16), leaf(4, 2, 16)
    cos, sin = torch.randn(8, 8), torch.randn(8, 8).requires_grad_()
    for _ in range(2):
        with pytest.raises(GradientRefused, match="apply_rope: `sin` has no gradient in this op"):
            opmux.apply_rope(q, k, cos, sin)


def test_a_wrong_shape_is_told() -> None:
    opmux.linear(leaf(4, 16), leaf(8, 16))
    with pytest.raises(opmux.errors.InvalidArgument, match="linear: "):
        opmux.linear(leaf(4, 16), leaf(8, 12))


def test_options_that_the_backward_does_not_take_are_left_out() -> None:
    gate, up = leaf(4, 16), leaf(4, 16)
    opmux.gelu_mul(gate, up, approximate="none").sum().backward()
    right = torch.autograd.grad(opmux.gelu_mul.reference(gate, up, approximate="none").sum(), gate)
    torch.testing.assert_close(gate.grad, right[0])


def test_an_error_of_the_variant_is_not_blamed_on_the_op() -> None:
    def broken(*tensors: Tensor, **options: Any) -> Any:
        raise RuntimeError("the variant is broken")

    tensors = tuple(leaf(1, 8, 2, 16) for _ in "qkv")
    with backends(v=implementation(broken, op="attention_lse", priority=90)):
        with torch.no_grad():
            opmux.attention(*tensors)
        assert opmux.attention(*tensors).shape == (1, 8, 2, 16)
        assert {q.op for q in opmux.quarantined()} == {"attention_lse"}
