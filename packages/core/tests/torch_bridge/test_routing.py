"""Inference mode, autocast, fake and meta tensors, torch's own modes, tensor subclasses, default devices."""

import contextlib
import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from backends import backends, implementation
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch_bridge.samples import (
    ALL,
    BLOCK_OPS,
    DIFFERENTIABLE,
    FUNCTIONAL,
    MUTATING,
    Block,
    Sample,
    curved,
    outputs,
    sample,
    total,
)

import opmux
from opmux.callpath.op import OPS
from opmux.torch_bridge import routing


def assert_same_call(call: Sample, expected: Sample) -> None:
    """Both calls give the same, and leave the same in their arguments."""
    torch.testing.assert_close(call(), expected(), rtol=0, atol=0)
    torch.testing.assert_close(call.tensors, expected.tensors, rtol=0, atol=0)


@pytest.mark.parametrize("name", ALL)
def test_inference_mode(name: str) -> None:
    outside, expected = sample(name), sample(name)
    with torch.inference_mode():
        inside = sample(name)
        assert all(r.is_inference() for r in outputs(inside.copy()()))
        assert_same_call(inside, expected.copy())
        assert_same_call(outside, expected.copy())
    assert_same_call(expected.copy(), expected)  # and the plans made there serve outside


@pytest.mark.parametrize("name", MUTATING)
def test_an_inference_tensor_is_written_to_in_inference_mode_only(name: str) -> None:
    with torch.inference_mode():
        call = sample(name)
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside InferenceMode"):
        call()


@pytest.mark.parametrize("name", ALL)
def test_autocast_is_off_inside_an_op(name: str) -> None:
    call, expected = sample(name, torch.float32), sample(name, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert_same_call(call, expected.copy())
        assert torch.is_autocast_enabled("cpu")
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.bfloat16
    assert_same_call(sample(name, torch.float32), expected)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
@pytest.mark.parametrize("backward_inside", [False, True])
def test_autocast_is_off_inside_a_backward(name: str, backward_inside: bool) -> None:
    call = sample(name, torch.float32)
    call, expected = call.requiring(*call.differentiable), call.requiring(*call.differentiable)
    with torch.autocast("cpu", torch.bfloat16):
        loss = curved(call())
        if backward_inside:
            loss.backward()
    if not backward_inside:
        loss.backward()
    curved(expected()).backward()
    for place in call.differentiable:
        torch.testing.assert_close(call.tensors[place].grad, expected.tensors[place].grad, rtol=0, atol=0)  # type: ignore[union-attr]


def test_a_model_under_autocast_keeps_the_dtypes_of_its_tensors() -> None:
    block, x = Block(), torch.randn(2, 5, 32)
    with torch.autocast("cpu", torch.bfloat16):
        assert block(x).dtype == torch.float32
        # What torch computes in bfloat16 meets the ops as bfloat16, beside float32 norm weights.
        assert opmux.rms_norm(torch.mm(x[0], block.to_hidden), block.first_norm).dtype == torch.bfloat16


def fake_mode(symbolic: bool) -> FakeTensorMode:
    return FakeTensorMode(shape_env=ShapeEnv()) if symbolic else FakeTensorMode()


def faked(mode: FakeTensorMode, tensor: Tensor, symbolic: bool) -> FakeTensor:
    if not symbolic:
        return mode.from_tensor(tensor)
    sizes: Any = [DimDynamic.DYNAMIC] * tensor.dim()
    context = StatelessSymbolicContext(dynamic_sizes=sizes)
    return mode.from_tensor(tensor, symbolic_context=context)


def form(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("symbolic", [False, True])
def test_fake_tensors(name: str, symbolic: bool) -> None:
    call = sample(name)
    mode = fake_mode(symbolic)
    fake = call.with_tensors(lambda t: faked(mode, t, symbolic))
    with mode:
        given = outputs(fake())
    outside = outputs(fake())
    for result, other, expected in zip(given, outside, outputs(call()), strict=True):
        assert isinstance(result, FakeTensor)
        assert isinstance(other, FakeTensor)
        assert form(result) == form(other) == form(expected)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_of_fake_tensors(name: str) -> None:
    call = sample(name)
    call = call.requiring(*call.differentiable)
    mode = fake_mode(symbolic=False)
    fake = call.with_tensors(mode.from_tensor)
    with mode:
        results = outputs(fake())
        inside = torch.autograd.grad(results[0].sum(), [fake.tensors[p] for p in call.differentiable])  # type: ignore[misc]
    for place, grad in zip(call.differentiable, inside, strict=True):
        assert isinstance(grad, FakeTensor)
        assert grad.shape == call.tensors[place].shape  # type: ignore[union-attr]


def test_a_model_of_fake_tensors() -> None:
    with FakeTensorMode():
        block, x = Block(), torch.randn(2, 5, 32)
        loss = block(x).square().sum()
        loss.backward()
    assert all(isinstance(p.grad, FakeTensor) and p.grad.shape == p.shape for p in block.parameters())


@pytest.mark.parametrize("name", ALL)
def test_meta_tensors(name: str) -> None:
    call = sample(name)
    meta = call.with_tensors(lambda t: t.to("meta"))
    for result, expected in zip(outputs(meta()), outputs(call()), strict=True):
        assert result.is_meta
        assert (result.shape, result.stride(), result.dtype) == (expected.shape, expected.stride(), expected.dtype)
    assert_same_call(sample(name), sample(name))  # the plans of the real tensors are their own


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_out_on_meta_tensors(name: str) -> None:
    call = sample(name)
    if not call.op.signature.takes_out:
        assert {t.name for t in call.op.signature.tensors} & {"out"}
        return
    meta = call.with_tensors(lambda t: t.to("meta"))
    results = outputs(meta())
    assert meta(out=results if len(results) > 1 else results[0]) is not None


class Seeing(TorchDispatchMode):
    """Notes which ops pass."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))

    @property
    def ops(self) -> list[str]:
        return [s.split(".")[1] for s in self.seen if s.startswith("opmux.")]


class Hearing(TorchFunctionMode):
    """Notes which functions are called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("mode", [Seeing, Hearing])
def test_a_mode_sees_one_op(name: str, mode: type[Seeing | Hearing]) -> None:
    call, expected = sample(name), sample(name)
    call.copy()()  # a plan that is made already is not taken past the mode
    with mode() as watching:
        given = call()
    assert [s for s in watching.seen if "opmux" in s] == [f"opmux.{name}.default"]
    if mode is Seeing:
        assert watching.seen == [f"opmux.{name}.default"]
    torch.testing.assert_close(given, expected(), rtol=0, atol=0)
    torch.testing.assert_close(call.tensors, expected.tensors, rtol=0, atol=0)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
@pytest.mark.parametrize("where", ["both", "backward"])
def test_a_dispatch_mode_sees_the_gradients_ops(name: str, where: str) -> None:
    call = sample(name)
    call = call.requiring(*call.differentiable)
    forward = Seeing()
    with forward if where == "both" else contextlib.nullcontext():
        loss = total(call())
    assert forward.ops == ([call.op.gradient_through or name] if where == "both" else [])
    with Seeing() as backward:
        loss.backward()
    assert backward.ops == [call.op.gradient]


class Tagged(Tensor):
    """A subclass without behaviour of its own: its results are of its class."""


@pytest.mark.parametrize("name", ALL)
def test_a_plain_subclass(name: str) -> None:
    call, expected = sample(name), sample(name)
    call.copy()()
    tagged = call.with_tensors(lambda t: t.as_subclass(Tagged))
    given, wanted = outputs(tagged()), outputs(expected())
    assert all(type(result) is Tagged for result in given)
    for result, other in zip(given, wanted, strict=True):
        torch.testing.assert_close(result.as_subclass(Tensor), other, rtol=0, atol=0)
    torch.testing.assert_close(call.tensors, expected.tensors, rtol=0, atol=0)


class Wrapped(Tensor):
    """A subclass that holds a tensor, notes which ops it meets, and runs them on what it holds."""

    seen: list[str] = []
    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "Wrapped":
        made: Wrapped = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.shape,
            strides=held.stride(),
            dtype=held.dtype,
            device=held.device,
            requires_grad=held.requires_grad,
        )
        made.held = held.detach()
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(str(function))
        args, kwargs = tree_map_only(Wrapped, lambda t: t.held, (args, kwargs or {}))
        return tree_map_only(Tensor, Wrapped, function(*args, **kwargs))


@pytest.mark.parametrize("name", ALL)
def test_a_subclass_that_dispatches(name: str) -> None:
    call, expected = sample(name), sample(name)
    call.copy()()
    wrapped = call.with_tensors(Wrapped)
    Wrapped.seen.clear()
    given, wanted = outputs(wrapped()), outputs(expected())
    assert [s for s in Wrapped.seen if s != "aten.detach.default"] == [f"opmux.{name}.default"]
    for result, other in zip(given, wanted, strict=True):
        assert isinstance(result, Wrapped)
        torch.testing.assert_close(result.held, other, rtol=0, atol=0)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_of_a_subclass_that_dispatches(name: str) -> None:
    call = sample(name)
    call = call.requiring(*call.differentiable)
    wrapped = call.with_tensors(Wrapped)
    loss = outputs(wrapped())[0].sum()
    Wrapped.seen.clear()
    loss.backward()
    assert f"opmux.{call.op.gradient}.default" in Wrapped.seen
    outputs(call())[0].sum().backward()
    for place in call.differentiable:
        grad = wrapped.tensors[place].grad  # type: ignore[union-attr]
        assert isinstance(grad, Wrapped)
        torch.testing.assert_close(grad.held, call.tensors[place].grad)  # type: ignore[union-attr]


@pytest.fixture
def default_device_meta() -> Iterator[None]:
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


@pytest.mark.parametrize("name", ALL)
def test_a_default_device_changes_nothing(name: str, default_device_meta: None) -> None:
    with torch.device("cpu"):
        call, expected = sample(name), sample(name)
        expected_results = expected()
    torch.testing.assert_close(call(), expected_results, rtol=0, atol=0)
    torch.testing.assert_close(call.tensors, expected.tensors, rtol=0, atol=0)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_a_default_dtype_changes_nothing(name: str) -> None:
    call = sample(name, torch.float32)
    expected = call()
    torch.set_default_dtype(torch.float64)
    try:
        torch.testing.assert_close(call(), expected, rtol=0, atol=0)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", ALL)
def test_deterministic_mode(name: str) -> None:
    call, expected = sample(name), sample(name)
    expected_results = expected()
    torch.use_deterministic_algorithms(True)
    try:
        torch.testing.assert_close(call(), expected_results, rtol=0, atol=0)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_parameters_take_the_direct_way_without_gradients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call = sample(name)
    parameters = call.with_tensors(lambda t: nn.Parameter(t) if t.is_floating_point() else t)
    with torch.no_grad():
        parameters()
        monkeypatch.setattr(routing, "call", lambda *arguments: pytest.fail("not the direct way"))
        given = outputs(parameters())
    for result, expected in zip(given, outputs(call()), strict=True):
        assert type(result) is Tensor
        torch.testing.assert_close(result, expected, rtol=0, atol=0)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(reentrant: bool) -> None:
    block, x = Block(), torch.randn(2, 5, 32, requires_grad=True)
    block(x).square().sum().backward()
    expected = [p.grad.clone() for p in block.parameters()]  # type: ignore[union-attr]
    block.zero_grad()
    with opmux.trace() as trace:
        checkpoint(block, x, use_reentrant=reentrant).square().sum().backward()
    for parameter, grad in zip(block.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, grad, rtol=0, atol=0)
    calls = {row.op: row.calls for row in trace.rows}
    assert calls["silu_mul"] == 2, "the forward runs again in the backward"
    assert calls["silu_mul_backward"] == 1


def test_selective_checkpointing_knows_the_ops_by_name() -> None:
    block, x = Block(), torch.randn(2, 5, 32, requires_grad=True)
    block(x).square().sum().backward()
    expected = [p.grad.clone() for p in block.parameters()]  # type: ignore[union-attr]
    block.zero_grad()
    kept = {torch.ops.opmux.attention_lse.default, torch.ops.opmux.linear.default}

    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if op in kept else CheckpointPolicy.PREFER_RECOMPUTE

    with opmux.trace() as trace:
        checkpoint(
            block, x, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(policy)
        ).square().sum().backward()
    for parameter, grad in zip(block.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, grad, rtol=0, atol=0)
    calls = {row.op: row.calls for row in trace.rows}
    assert (calls["attention_lse"], calls["rms_norm"]) == (1, 2)


def test_anomaly_mode() -> None:
    call = sample("attention").requiring(0)
    with pytest.warns(UserWarning, match="Anomaly Detection"), torch.autograd.detect_anomaly():
        total(call()).backward()
    assert call.tensors[0].grad is not None  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ALL)
def test_an_op_is_pickled_and_copied_by_reference(name: str) -> None:
    public = OPS[name].public
    assert pickle.loads(pickle.dumps(public)) is public
    assert copy.deepcopy(public) is public
    assert copy.copy(public) is public


def test_a_module_that_holds_an_op_is_pickled_and_copied() -> None:
    block, x = Block(), torch.randn(2, 5, 32)
    for made in (copy.deepcopy(block), pickle.loads(pickle.dumps(block))):
        assert made.norm is opmux.rms_norm
        torch.testing.assert_close(made(x), block(x), rtol=0, atol=0)


def test_the_model_runs_the_ops_it_says() -> None:
    with opmux.trace() as trace, torch.no_grad():
        Block()(torch.randn(2, 5, 32))
    assert {row.op for row in trace.rows} == BLOCK_OPS


def test_a_negated_view_reaches_a_target_as_its_values():
    seen = []

    def target(x, weight, *, eps, weight_offset):
        seen.append((x.is_neg(), x.clone()))
        return torch.empty_like(x, memory_format=torch.contiguous_format)

    view = torch.randn(4, 8, dtype=torch.complex64).conj().imag
    assert view.is_neg()
    with backends(a=implementation(target)):
        opmux.rms_norm(view, torch.ones(8))
    assert [negated for negated, _ in seen] == [False]
    assert torch.equal(seen[0][1], view.resolve_neg())
