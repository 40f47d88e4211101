"""torch.func: grad, vjp and functional_call work, of public functions and of registered ops; the rest is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from backends import backends, implementation
from torch import Tensor, func
from torch_bridge.samples import (
    DIFFERENTIABLE,
    FUNCTIONAL,
    INTEGERS,
    MUTATING,
    WITH_OUT,
    Block,
    Sample,
    curved,
    outputs,
    sample,
)

import opmux
from opmux.callpath.op import OPS
from opmux.errors import GradientRefused, UnsupportedCall

# torch's own forward-mode AD compiles its decompositions with torch.jit.script, which warns.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")

WAYS = ["public", "registered"]


def loss_of(call: Sample, way: str, *places: int) -> Callable[..., Tensor]:
    """A scalar function of the tensors at ``places``."""

    def loss(*moved: Tensor) -> Tensor:
        tensors = list(call.tensors)
        for place, tensor in zip(places, moved, strict=True):
            tensors[place] = tensor
        if way == "public":
            return curved(call.run(*tensors))
        return curved(call.registered(*tensors, **call.options))

    return loss


def backward_gradients(call: Sample, *places: int) -> list[Tensor]:
    recorded = call.requiring(*places)
    curved(recorded()).backward()
    return [recorded.tensors[place].grad for place in places]  # type: ignore[union-attr, misc]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_grad(name: str, way: str) -> None:
    call = sample(name)
    places = call.differentiable
    gradient = func.grad(loss_of(call, way, *places), argnums=tuple(range(len(places))))
    given = gradient(*(call.tensors[place] for place in places))
    for grad, expected in zip(given, backward_gradients(call, *places), strict=True):
        torch.testing.assert_close(grad, expected, rtol=0, atol=0)


@pytest.mark.parametrize("way", WAYS)
def test_vjp(way: str) -> None:
    call = sample("add_rms_norm")
    value, pull = func.vjp(loss_of(call, way, 0, 1), *call.tensors[:2])
    torch.testing.assert_close(value, curved(call()))
    for grad, expected in zip(pull(torch.ones_like(value)), backward_gradients(call, 0, 1), strict=True):
        torch.testing.assert_close(grad, expected, rtol=0, atol=0)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_targets_get_tensors_with_memory(name: str, way: str) -> None:
    """No wrapper of a transform reaches a target, not even from a vjp that is called after its transform."""
    call = sample(name)

    def target_of(op: str) -> Callable[..., Any]:
        def target(*tensors: Any, **options: Any) -> Any:
            assert all(t.data_ptr() for t in tensors if t is not None)
            return OPS[op].reference(*tensors, **options)

        return target

    ops = (call.op.gradient_through or name, call.op.gradient)
    with backends(native=[implementation(target_of(op), op) for op in ops]), opmux.policy.override(strict=True):
        func.grad(loss_of(call, way, 0))(call.tensors[0])
        value, pull = func.vjp(loss_of(call, way, 0), call.tensors[0])
        (given,) = pull(torch.ones_like(value))
    torch.testing.assert_close(given, backward_gradients(call, 0)[0], rtol=0, atol=0)


@pytest.mark.parametrize("way", WAYS)
def test_nested_levels_that_differentiate_different_things(way: str) -> None:
    """The value inside an inner grad is itself a function that an outer level may differentiate."""
    call = sample("rms_norm")
    x, weight = call.tensors
    inner_value = func.grad_and_value(loss_of(call, way, 0))

    def outer(x: Tensor, w: Tensor) -> Tensor:
        def inner(y: Tensor) -> Tensor:
            return loss_of(call, way, 0, 1)(y, w)

        return func.grad_and_value(inner)(x)[1]

    given = func.grad(outer, argnums=1)(x, weight)
    torch.testing.assert_close(given, backward_gradients(call, 1)[0], rtol=0, atol=0)
    torch.testing.assert_close(inner_value(x)[1], curved(call()))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_grad_of_grad(name: str, way: str) -> None:
    call = sample(name)
    first = func.grad(loss_of(call, way, 0))
    with pytest.raises(GradientRefused, match="second-order gradients are not supported"):
        func.grad(lambda x: first(x).sum())(call.tensors[0])


@pytest.mark.parametrize("way", WAYS)
def test_grad_of_grad_by_another_argument(way: str) -> None:
    call = sample("rms_norm")
    x, weight = call.tensors
    with pytest.raises(GradientRefused, match="rms_norm: second-order"):
        func.grad(lambda w: func.grad(lambda y: loss_of(call, way, 0, 1)(y, w))(x).sum())(weight)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", sorted({*FUNCTIONAL} - {*INTEGERS}))
def test_jvp(name: str, way: str) -> None:
    call = sample(name)
    x = call.tensors[0]
    with pytest.raises(GradientRefused, match=f"{name}: forward-mode gradients"):
        func.jvp(loss_of(call, way, 0), (x,), (x,))


@pytest.mark.parametrize("way", WAYS)
def test_jvp_by_an_argument_that_the_op_does_not_differentiate(way: str) -> None:
    call = sample("apply_rope")
    cos = call.tensors[2]
    with pytest.raises(GradientRefused, match="apply_rope: forward-mode"):
        func.jvp(loss_of(call, way, 2), (cos,), (cos,))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "transform",
    [
        lambda f, x: func.hessian(f)(x),
        lambda f, x: func.jacfwd(f)(x),
        lambda f, x: func.jacfwd(func.grad(f))(x),
        lambda f, x: func.jvp(func.grad(f), (x,), (x,)),
        func.linearize,
    ],
)
def test_transforms_made_of_forward_mode(transform: Any, way: str) -> None:
    call = sample("rms_norm")
    with pytest.raises((GradientRefused, UnsupportedCall), match=r"rms_norm: .* not supported"):
        transform(loss_of(call, way, 0), call.tensors[0])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FUNCTIONAL)
def test_vmap(name: str, way: str) -> None:
    call = sample(name)
    batch = torch.stack([call.tensors[0], call.tensors[0]])  # type: ignore[list-item]
    with pytest.raises(UnsupportedCall) as raised:
        func.vmap(loss_of(call, way, 0))(batch)
    assert str(raised.value) == (
        f"{name}: torch.func.vmap is not supported; loop over the batch, "
        "or pass it as one of the leading dims where the op takes them"
    )


def test_vmap_over_something_else_leaves_the_op_alone() -> None:
    call = sample("rms_norm")
    given = func.vmap(lambda factor: factor * call())(torch.arange(3.0, dtype=torch.float64))
    torch.testing.assert_close(given[2], 2 * call())


@pytest.mark.parametrize("transform", [lambda f: func.vmap(func.grad(f)), func.jacrev])
def test_transforms_made_of_vmap(transform: Any) -> None:
    call = sample("rms_norm")
    x = torch.stack([call.tensors[0], call.tensors[0]])  # type: ignore[list-item]
    with pytest.raises(UnsupportedCall, match=r"rms_norm.*: torch.func.vmap is not supported"):
        transform(lambda y: outputs(call.run(y, *call.tensors[1:]))[0])(x)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MUTATING)
def test_an_op_that_writes_is_refused(name: str, way: str) -> None:
    call = sample(name)

    def loss(x: Tensor) -> Tensor:
        (call if way == "public" else lambda: call.registered(*call.tensors, **call.options))()
        return x.sum()

    with pytest.raises(UnsupportedCall) as raised:
        func.grad(loss)(torch.ones(3))
    assert str(raised.value) == (
        f"{name}: it writes into its arguments, which is not supported under torch.func transforms; "
        "call it outside the transform"
    )


def test_out_is_refused() -> None:
    call = sample("rms_norm")
    out = torch.empty_like(call.tensors[0])  # type: ignore[arg-type]
    assert "rms_norm" in WITH_OUT

    def loss(x: Tensor) -> Tensor:
        return call(out=out).sum() + x.sum()

    with pytest.raises(UnsupportedCall) as raised:
        func.grad(loss)(torch.ones(3))
    assert str(raised.value) == (
        "rms_norm: out= is not supported under torch.func transforms; call it outside the transform"
    )


def test_functional_call_and_grad_of_a_model() -> None:
    block, x = Block(), torch.randn(2, 5, 32)
    parameters = dict(block.named_parameters())
    given = func.grad(lambda p: func.functional_call(block, p, (x,)).square().sum())(parameters)
    block(x).square().sum().backward()
    for name, parameter in parameters.items():
        torch.testing.assert_close(given[name], parameter.grad, rtol=1e-5, atol=1e-5)


def test_functional_call_with_other_weights() -> None:
    block, x = Block(), torch.randn(2, 5, 32)
    doubled = {name: p.detach() * 2 for name, p in block.named_parameters()}
    given = func.functional_call(block, doubled, (x,))
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.mul_(2)
    torch.testing.assert_close(given, block(x))


def test_a_backend_is_chosen_under_a_transform_as_it_is_outside() -> None:
    call = sample("rms_norm")
    with opmux.trace() as trace:
        func.grad(loss_of(call, "public", 0))(call.tensors[0])
    assert [(row.op, row.backend, row.calls) for row in trace.rows] == [
        ("rms_norm", "reference", 1),
        ("rms_norm_backward", "reference", 1),
    ]
