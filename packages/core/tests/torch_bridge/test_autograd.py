"""Gradients of every op: right, only those that are wanted, from any incoming gradient, in any thread."""

import threading
from typing import Any

import pytest
import torch
from backends import backends, implementation
from torch import Tensor
from torch_bridge.samples import DIFFERENTIABLE, Block, gradients, gradients_of, outputs, sample, total, varying

import opmux
from opmux.callpath.op import OPS
from opmux.errors import InvalidArgument, UnsupportedCall
from opmux.plugin import Priority


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradcheck(name: str) -> None:
    call = sample(name)
    call = call.requiring(*call.differentiable)
    assert torch.autograd.gradcheck(call.run, call.tensors)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradcheck_through_the_registered_op(name: str) -> None:
    call = sample(name)
    call = call.requiring(call.differentiable[0])
    assert torch.autograd.gradcheck(lambda *t: call.registered(*t, **call.options), call.tensors, fast_mode=True)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_have_the_dtype_of_their_tensor(name: str) -> None:
    call = sample(name, torch.float32)
    for place, grad in zip(call.differentiable, gradients(call, call.differentiable), strict=True):
        tensor = call.tensors[place]
        assert tensor is not None
        assert (grad.dtype, grad.shape) == (tensor.dtype, tensor.shape)


@pytest.fixture
def masks() -> Any:
    """What every backward op is asked for, by name."""
    seen: dict[str, list[tuple[bool, ...]]] = {}

    def spying(name: str) -> Any:
        def spy(*tensors: Any, **options: Any) -> Any:
            seen.setdefault(name, []).append(options["output_mask"])
            return OPS[name].reference(*tensors, **options)

        return spy

    spied = sorted({OPS[n].gradient for n in DIFFERENTIABLE})
    with backends(spy=[implementation(spying(name), name, priority=Priority.SPECIALISED) for name in spied]):
        yield seen


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_that_nobody_wants_are_not_asked_for(name: str, masks: dict[str, list[tuple[bool, ...]]]) -> None:
    call = sample(name)
    arguments = [t.name for t in call.op.signature.tensors]
    complete = dict(zip(call.differentiable, gradients(call, call.differentiable), strict=True))
    for place in call.differentiable:
        masks.clear()
        (alone,) = gradients(call, (place,))
        wanted = tuple(argument == arguments[place] for argument in gradients_of(call.op))
        assert masks == {call.op.gradient: [wanted]}
        torch.testing.assert_close(alone, complete[place], rtol=1e-12, atol=1e-12)


def test_no_backward_runs_where_nothing_requires_a_gradient(masks: dict[str, list[tuple[bool, ...]]]) -> None:
    x, weight = torch.randn(3, 8), torch.randn(8, requires_grad=True)
    opmux.rms_norm(x, weight.detach())
    with torch.no_grad():
        assert not opmux.rms_norm(x, weight).requires_grad
    assert masks == {}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_a_plan_made_without_gradients_does_not_hide_a_gradient(name: str, without: Any) -> None:
    call = sample(name)
    call = call.requiring(*call.differentiable)
    call.op.drop_plans()
    for _ in range(2):
        with without():
            assert not any(r.requires_grad for r in outputs(call()))
        assert all(r.requires_grad for r in varying(call.op, call()))


@pytest.mark.parametrize("name", ["attention", "gelu_mul"])
def test_options_are_normalised_where_a_gradient_is_due(name: str) -> None:
    seen: list[Any] = []
    variant = OPS[OPS[name].gradient_through or name]

    def spy(*tensors: Any, **options: Any) -> Any:
        seen.append((options.get("causal"), options.get("window"), options.get("approximate")))
        return variant.reference(*tensors, **options)

    call = sample(name).requiring(0)
    with backends(spy=implementation(spy, variant.name)):
        if name == "attention":
            for window in ((1, 0), [1, 0]):
                opmux.attention(*call.tensors, causal=False, window=window)
            assert seen == [(False, (1, 0), None)] * 2
            with pytest.raises(InvalidArgument, match="attention: `causal` expected a bool, got 1"):
                opmux.attention(*call.tensors, causal=1)
        else:
            call(approximate="tanh")
            with pytest.raises(InvalidArgument, match="gelu_mul: `approximate` expected 'none' or 'tanh', got 'no'"):
                call(approximate="no")


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (((5, 8), (7,)), r"rms_norm: `weight` expected shape \[hidden\] = \[8\], got shape \[7\]"),
        (((5, 8), (2, 8)), r"rms_norm: `weight` expected rank 1 \(hidden\), got rank 2, shape \[2, 8\]"),
        (((), (8,)), r"rms_norm: `x` expected at least rank 1"),
    ],
)
def test_a_wrong_shape_where_a_gradient_is_due(sizes: tuple[tuple[int, ...], ...], message: str) -> None:
    opmux.rms_norm(torch.randn(5, 8, requires_grad=True), torch.randn(8))
    with pytest.raises(InvalidArgument, match=message):
        opmux.rms_norm(*(torch.randn(s, requires_grad=True) for s in sizes))


@pytest.mark.parametrize("name", DIFFERENTIABLE)
@pytest.mark.parametrize("layout", ["expanded", "transposed"])
def test_incoming_gradients_of_any_strides(name: str, layout: str, masks: dict[str, list[tuple[bool, ...]]]) -> None:
    call = sample(name)

    def incoming(result: Tensor) -> Tensor:
        if layout == "expanded":  # as result.sum() gives it: every stride is 0
            return torch.ones((), dtype=result.dtype).expand(result.shape)
        values = torch.linspace(-1, 1, result.numel(), dtype=result.dtype)
        return values.view(result.shape[::-1]).permute(tuple(reversed(range(result.dim()))))

    recorded = call.requiring(*call.differentiable)
    results = varying(call.op, recorded())
    grads = [incoming(r) for r in results]
    assert not any(g.is_contiguous() for g in grads if g.dim() > 1)
    wanted = [recorded.tensors[place] for place in call.differentiable]
    given = torch.autograd.grad(results, wanted, grads, retain_graph=True)  # type: ignore[arg-type]
    expected = torch.autograd.grad(results, wanted, [g.contiguous() for g in grads])  # type: ignore[arg-type]
    torch.testing.assert_close(given, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", [n for n in DIFFERENTIABLE if len(varying(OPS[n], OPS[n].signature.outputs)) > 1])
@pytest.mark.parametrize("used", [0, 1])
def test_one_of_two_outputs_used(name: str, used: int) -> None:
    call = sample(name)
    call = call.requiring(*call.differentiable)
    grads = torch.autograd.grad(total(call()[used]), [call.tensors[place] for place in call.differentiable])  # type: ignore[misc]
    assert len(grads) == len(call.differentiable), "an output that is used has a gradient for every tensor"
    assert torch.autograd.gradcheck(lambda *t: call.run(*t)[used], call.tensors, fast_mode=True)


@pytest.mark.parametrize(
    ("name", "variant"), [("attention", "attention_lse"), ("attention_varlen", "attention_varlen_lse")]
)
def test_attention_has_the_gradients_of_its_lse_form(name: str, variant: str) -> None:
    call = sample(name)
    places = call.differentiable
    plain, with_lse = call.requiring(*places), call.requiring(*places)
    total(plain()).backward()
    out, _ = OPS[variant].public(*with_lse.tensors, **call.options)
    total(out).backward()
    for place in places:
        torch.testing.assert_close(plain.tensors[place].grad, with_lse.tensors[place].grad, rtol=0, atol=0)  # type: ignore[union-attr]


def test_attention_runs_its_lse_form_only_where_a_gradient_is_due() -> None:
    call = sample("attention")
    with opmux.trace() as trace:
        call()
    assert {row.op for row in trace.rows} == {"attention"}
    with opmux.trace() as trace:
        call.requiring(0)()
    assert {row.op for row in trace.rows} == {"attention_lse"}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_create_graph_alone_changes_nothing(name: str) -> None:
    call = sample(name)
    recorded = call.requiring(*call.differentiable)
    wanted = [recorded.tensors[place] for place in call.differentiable]
    with_graph = torch.autograd.grad(total(recorded()), wanted, create_graph=True)  # type: ignore[arg-type]
    for grad, expected in zip(with_graph, gradients(call, call.differentiable), strict=True):
        torch.testing.assert_close(grad.detach(), expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", [n for n in DIFFERENTIABLE if n != "merge_attention_states"])
def test_a_saved_tensor_that_is_changed_in_place_is_an_error(name: str) -> None:
    call = sample(name)
    recorded = call.requiring(*call.differentiable)
    # The tensors given are not leaves, so that they may be changed; all that a backward saves of them is.
    tensors = [t * 1 if t is not None and t.requires_grad else t for t in recorded.tensors]
    loss = total(recorded.run(*tensors))
    kept = {t.name for t in OPS[call.op.gradient].signature.tensors}
    changed = [t for argument, t in zip(call.op.signature.tensors, tensors, strict=True) if argument.name in kept]
    with torch.no_grad():
        for tensor in changed:
            if tensor is not None:
                tensor.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_an_output_that_is_saved_and_changed_in_place_is_an_error() -> None:
    call = sample("attention_lse").requiring(0)
    out, _ = call()
    with torch.no_grad():
        out.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_what_an_in_place_op_writes_to_invalidates_what_was_saved() -> None:
    x, residual, weight = torch.randn(3, 8), torch.randn(3, 8), torch.randn(8, requires_grad=True)
    y = opmux.rms_norm(x, weight)
    opmux.add_rms_norm_(x, residual, weight.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_what_out_writes_to_invalidates_what_was_saved() -> None:
    x, weight = torch.randn(3, 8), torch.randn(8, requires_grad=True)
    y = opmux.rms_norm(x, weight)
    opmux.rms_norm(torch.randn(3, 8), torch.ones(8), out=x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_backward_twice_needs_the_graph_retained() -> None:
    call = sample("rms_norm").requiring(0, 1)
    loss = total(call())
    loss.backward(retain_graph=True)
    loss.backward()
    torch.testing.assert_close(call.tensors[0].grad / 2, gradients(call, (0,))[0])  # type: ignore[union-attr]
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_saved_tensor_hooks_see_what_is_saved() -> None:
    call = sample("rms_norm").requiring(0)
    packed = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)
        return tensor.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = total(call())
    assert {tuple(t.shape) for t in packed} >= {(5, 8), (8,)}
    loss.backward()
    torch.testing.assert_close(call.tensors[0].grad, gradients(call, (0,))[0])  # type: ignore[union-attr]


def test_parameters_accumulate_gradients() -> None:
    weight = torch.nn.Parameter(torch.ones(8))
    x = torch.randn(3, 8)
    opmux.rms_norm(x, weight).sum().backward()
    first = weight.grad.clone()  # type: ignore[union-attr]
    opmux.rms_norm(x, weight).sum().backward()
    torch.testing.assert_close(weight.grad, 2 * first)


def test_backward_from_many_threads() -> None:
    block, x = Block(), torch.randn(2, 5, 32)
    block(x).sum().backward()
    expected = {name: p.grad.clone() for name, p in block.named_parameters()}  # type: ignore[union-attr]
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(5):
                own = Block()
                own(x).sum().backward()
                for name, parameter in own.named_parameters():
                    torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-5, atol=1e-5)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_backward_in_another_thread_than_the_forward() -> None:
    call = sample("attention").requiring(0)
    loss = total(call())
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    torch.testing.assert_close(call.tensors[0].grad, gradients(call, (0,))[0])  # type: ignore[union-attr]


BATCHED = (
    "rms_norm: batched gradients (is_grads_batched=True, vectorize=True) are not supported; "
    "compute one gradient at a time"
)


def batched_gradients(x: Tensor, weight: Tensor) -> Any:
    y = opmux.rms_norm(x, weight)
    return torch.autograd.grad(y, (x, weight), torch.randn(3, *y.shape), is_grads_batched=True)


def vectorised_jacobian(x: Tensor, weight: Tensor) -> Any:
    return torch.autograd.functional.jacobian(lambda x: opmux.rms_norm(x, weight), x, vectorize=True)


@pytest.mark.parametrize("compute", [batched_gradients, vectorised_jacobian])
@pytest.mark.parametrize("planned", [False, True, "for one tensor given twice"])
def test_several_gradients_at_once_are_refused_whatever_has_a_plan(compute: Any, planned: bool | str) -> None:
    x, weight = torch.randn(4, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    OPS["rms_norm_backward"].drop_plans()
    if planned:
        opmux.rms_norm(x, weight).sum().backward()
    if isinstance(planned, str):
        plain = x.detach()
        for _ in range(2):  # the first call may load plugins, which drops plans
            opmux.rms_norm_backward(plain, plain, weight.detach())
    for _ in range(2):
        with pytest.raises(UnsupportedCall) as raised:
            compute(x, weight)
        assert str(raised.value) == BATCHED


@pytest.mark.parametrize("way", ["public", "out", "backend", "registered"])
def test_an_op_called_on_a_batched_gradient_is_refused(way: str) -> None:
    weight = torch.randn(8)
    calls = {
        "public": lambda grad: opmux.rms_norm(grad, weight),
        "out": lambda grad: opmux.rms_norm(grad, weight, out=torch.empty(4, 8)),
        "backend": lambda grad: opmux.rms_norm(grad, weight, backend="reference"),
        "registered": lambda grad: torch.ops.opmux.rms_norm(grad, weight),
    }

    class Calling(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            return calls[way](grad)

    opmux.rms_norm(torch.randn(4, 8), weight)
    x = torch.randn(4, 8, requires_grad=True)
    with pytest.raises(UnsupportedCall) as raised:
        torch.autograd.grad(Calling.apply(x), x, torch.randn(3, 4, 8), is_grads_batched=True)
    assert str(raised.value) == BATCHED


def test_the_gradient_of_an_absent_argument_is_empty() -> None:
    call = sample("attention_backward")
    assert call.tensors[6] is None
    *_, grad_sinks = call()
    assert grad_sinks.shape == (0,)
    *_, grad_sinks = call.registered(*call.tensors, **call.options)
    assert grad_sinks.shape == (0,)


def test_a_target_may_get_tensors_that_require_grad() -> None:
    """As the page for authors of backends says: DLPack wants them detached."""
    seen: list[tuple[bool, bool]] = []

    def exporting(x: Tensor, weight: Tensor, **options: Any) -> Tensor:
        seen.append((x.requires_grad, torch.is_grad_enabled()))
        if x.requires_grad:
            with pytest.raises(BufferError, match="Can't export tensors that require gradient"):
                x.__dlpack__()
        x.detach().__dlpack__()
        return OPS["rms_norm"].reference(x, weight, **options)

    parameter = torch.nn.Parameter(torch.randn(4, 8))
    with backends(exporting=implementation(exporting)):
        opmux.rms_norm(parameter, torch.ones(8)).sum().backward()
        with torch.no_grad():
            opmux.rms_norm(parameter, torch.ones(8))
    assert seen == [(True, False)] * 2
