"""Gradients that opmux does not give are refused by name: never None, never zero, never silence."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch_bridge.samples import (
    ALL,
    BACKWARD,
    DIFFERENTIABLE,
    FUNCTIONAL,
    INTEGERS,
    MUTATING,
    REFUSING,
    WITH_OUT,
    Sample,
    curved,
    outputs,
    sample,
    total,
)

import opmux
from opmux.callpath.op import OPS
from opmux.errors import GradientRefused, InvalidArgument

# torch's own forward-mode AD compiles its decompositions with torch.jit.script, which warns.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")

WAYS = ["public", "registered"]


def caller(call: Sample, way: str) -> Callable[..., Any]:
    """The public function or ``torch.ops``."""
    return call.run if way == "public" else lambda *t: call.registered(*t, **call.options)


def second_order_text(name: str) -> str:
    return (
        f"{name}: second-order gradients are not supported; differentiate once, or write this step with torch's own ops"
    )


def forward_mode_text(name: str) -> str:
    return (
        f"{name}: forward-mode gradients (torch.func.jvp, dual tensors) are not supported; "
        "use reverse mode (backward, torch.func.grad), or write this step with torch's own ops"
    )


def refused_text(name: str, written: str = "") -> str:
    return (
        f"{name}: no gradient is defined for this op{written}, and an argument requires one; "
        "call it under torch.no_grad(), or detach the arguments"
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_a_second_order_gradient(name: str, way: str) -> None:
    call = sample(name)
    recorded = call.requiring(*call.differentiable)
    wanted = [recorded.tensors[place] for place in call.differentiable]
    first = torch.autograd.grad(curved(caller(call, way)(*recorded.tensors)), wanted, create_graph=True)  # type: ignore[arg-type]
    assert all(grad.requires_grad for grad in first)
    with pytest.raises(GradientRefused) as raised:
        total(first).backward()
    assert str(raised.value) == second_order_text(call.op.gradient.removesuffix("_backward"))


def test_a_gradient_penalty_beside_an_ordinary_loss_is_refused_too() -> None:
    call = sample("rms_norm").requiring(0)
    y = call()
    (first,) = torch.autograd.grad(total(y), call.tensors[:1], create_graph=True)  # type: ignore[arg-type]
    with pytest.raises(GradientRefused, match="rms_norm: second-order"):
        (y.sum() + first.square().sum()).backward()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", BACKWARD)
def test_the_gradient_of_a_backward_op_called_by_hand(name: str, way: str) -> None:
    call = sample(name)
    recorded = call.requiring(0)
    results = outputs(caller(call, way)(*recorded.tensors))
    with pytest.raises(GradientRefused) as raised:
        total(results).backward()
    assert str(raised.value) == second_order_text(name.removesuffix("_backward"))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", sorted({*FUNCTIONAL} - {*INTEGERS}))
def test_dual_tensors(name: str, way: str) -> None:
    call = sample(name)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(call.tensors[0], torch.ones_like(call.tensors[0]))  # type: ignore[arg-type]
        with pytest.raises(GradientRefused) as raised:
            caller(call, way)(dual, *call.tensors[1:])
        assert str(raised.value) == forward_mode_text(name)
        caller(call, way)(*call.tensors)  # without a tangent the call is an ordinary one


@pytest.mark.parametrize("name", sorted({*WITH_OUT} - {*INTEGERS}))
def test_dual_tensors_with_out(name: str) -> None:
    call = sample(name)
    results = call()
    out = tuple(torch.empty_like(r) for r in outputs(results))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(call.tensors[0], torch.ones_like(call.tensors[0]))  # type: ignore[arg-type]
        with pytest.raises(GradientRefused, match="forward-mode"):
            call.run(dual, *call.tensors[1:], out=out if len(out) > 1 else out[0])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", sorted({*REFUSING} - {*MUTATING, *INTEGERS}))
def test_an_op_without_a_gradient(name: str, way: str) -> None:
    call = sample(name).requiring(0)
    with pytest.raises(GradientRefused) as raised:
        caller(call, way)(*call.tensors)
    assert str(raised.value) == refused_text(name)
    with torch.no_grad():
        assert not any(r.requires_grad for r in outputs(caller(call, way)(*call.tensors)))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MUTATING)
def test_a_tensor_that_is_written_to(name: str, way: str) -> None:
    call = sample(name)
    for written in call.op.signature.mutates:
        place = [t.name for t in call.op.signature.tensors].index(written)
        recorded = call.requiring(place)
        with pytest.raises(InvalidArgument) as raised:
            caller(call, way)(*recorded.tensors)
        assert str(raised.value) == (
            f"{name}: `{written}` expected a tensor that requires no gradient, since it is written in place, "
            f"got one that does; pass {written}.detach(), or call it under torch.no_grad()"
        )
        with torch.no_grad():
            caller(call, way)(*recorded.tensors)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["write_kv_cache", "add_rms_norm_"])
def test_another_argument_of_an_op_that_writes(name: str, way: str) -> None:
    call = sample(name)
    place = next(i for i, t in enumerate(call.op.signature.tensors) if t.name not in call.op.signature.mutates)
    recorded = call.requiring(place)
    with pytest.raises(GradientRefused) as raised:
        caller(call, way)(*recorded.tensors)
    assert str(raised.value) == refused_text(name, " (it writes into its arguments)")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", [2, 3])
def test_an_argument_that_the_op_does_not_differentiate(place: int, way: str) -> None:
    call = sample("apply_rope").requiring(0, place)
    name = ("cos", "sin")[place - 2]
    with pytest.raises(GradientRefused) as raised:
        caller(call, way)(*call.tensors)
    expected = f"apply_rope: `{name}` has no gradient in this op, and it requires one; pass {name}.detach()"
    assert str(raised.value) == expected


def test_an_argument_that_the_op_does_not_differentiate_under_a_transform() -> None:
    q, k, cos, sin, positions = sample("apply_rope").tensors
    with pytest.raises(GradientRefused, match="`cos` has no gradient"):
        torch.func.grad(lambda c: opmux.apply_rope(q, k, c, sin, positions)[0].sum())(cos)


@pytest.mark.parametrize("name", sorted({*WITH_OUT} - {*INTEGERS}))
def test_out_with_an_argument_that_requires_a_gradient(name: str) -> None:
    call = sample(name)
    place = next(i for i, t in enumerate(call.tensors) if t is not None and t.is_floating_point())
    recorded = call.requiring(place)
    results = outputs(call())
    out = results if len(results) > 1 else results[0]
    expected = (
        f"{name}: out= does not support autograd, and an argument requires a gradient; "
        "omit out=, or call it under torch.no_grad()"
    )
    with pytest.raises(GradientRefused) as raised:
        recorded(out=out)
    assert str(raised.value) == expected
    named = {"out": results[0]} if len(results) == 1 else {}
    named |= {f"out_{o.name}": r for o, r in zip(call.op.signature.outputs, results, strict=True)} if not named else {}
    with pytest.raises(GradientRefused) as raised:
        getattr(torch.ops.opmux, name).out(*recorded.tensors, **call.options, **named)
    assert str(raised.value) == expected
    with torch.no_grad():
        recorded(out=out)


def test_the_registered_out_refuses_an_out_that_requires_a_gradient() -> None:
    call = sample("rms_norm")
    out = torch.empty(5, 8, dtype=torch.float64, requires_grad=True)
    with pytest.raises(GradientRefused, match="rms_norm: out= does not support autograd"):
        torch.ops.opmux.rms_norm.out(*call.tensors, out=out)


def test_every_op_is_covered() -> None:
    assert sorted({*DIFFERENTIABLE, *BACKWARD, *REFUSING}) == ALL
    assert {n for n in ALL if OPS[n].signature.mutates} == set(MUTATING) <= set(REFUSING)
