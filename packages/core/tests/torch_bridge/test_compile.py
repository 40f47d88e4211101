"""torch.compile: one graph, which holds the registered ops; the plan is chosen when the graph runs."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from backends import backends, implementation
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.fx.experimental.proxy_tensor import make_fx
from torch_bridge.samples import (
    ALL,
    BLOCK_OPS,
    DIFFERENTIABLE,
    WITH_OUT,
    Block,
    Sample,
    curved,
    gradients_of,
    outputs,
    sample,
    total,
)

import opmux
from opmux.callpath.op import OPS
from opmux.plugin import Priority

# torch's own: forward-mode decompositions, and functorch's wrapping of what Dynamo hands to it.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")


class Recorder:
    """A compiler that compiles nothing and keeps the graphs, forward and backward, that it was given."""

    def __init__(self) -> None:
        self.graphs: list[fx.Graph] = []
        self.compilations = 0
        self._backend = aot_autograd(fw_compiler=self._keep, bw_compiler=self._keep)

    def __call__(self, module: fx.GraphModule, inputs: Any) -> Any:
        self.compilations += 1
        return self._backend(module, inputs)

    def _keep(self, module: fx.GraphModule, inputs: Any) -> Any:
        self.graphs.append(module.graph)
        return make_boxed_func(module.forward)

    @property
    def targets(self) -> set[str]:
        """Every op in the graphs, as ``opmux.rms_norm.default``; of one in a functionalised call, the op inside."""
        found = set()
        for graph in self.graphs:
            for node in graph.nodes:
                if node.op == "call_function":
                    inside = [a for a in node.args if isinstance(a, torch._ops.OpOverload)]
                    found.add(str(inside[0] if inside else node.target))
        return found

    @property
    def ops(self) -> set[str]:
        """The names of the opmux ops in the graphs."""
        return {t.split(".")[1] for t in self.targets if t.startswith("opmux.")}


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    torch._dynamo.reset()
    yield Recorder()
    torch._dynamo.reset()


PLUMBING = {
    "clone",
    "copy_",
    "detach",
    "getitem",
    "alias",
    "view",
    "slice",
    "empty",
    "new_zeros",
    "as_strided",
    "expand",
}
"""What may stand in the graph of one op beside it: what moves tensors and computes nothing."""


def assert_nothing_but(recorder: Recorder, ops: set[str]) -> None:
    assert recorder.ops == ops
    beside = {t.split(".")[1] if "." in t else t for t in recorder.targets if not t.startswith("opmux.")}
    assert {b.split(" ")[-1].rstrip(">") for b in beside} <= PLUMBING, recorder.targets


def compiled(call: Sample, recorder: Recorder) -> Any:
    return torch.compile(call.run, fullgraph=True, backend=recorder)


@pytest.mark.parametrize("name", ALL)
def test_forward(name: str, recorder: Recorder) -> None:
    call, eager = sample(name), sample(name)
    given, expected = compiled(call, recorder)(*call.tensors), eager()
    torch.testing.assert_close(given, expected, rtol=0, atol=0)
    torch.testing.assert_close(call.tensors, eager.tensors, rtol=0, atol=0)  # what mutating ops wrote
    assert_nothing_but(recorder, {name})
    assert recorder.compilations == 1


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_forward_and_backward(name: str, recorder: Recorder) -> None:
    call = sample(name)
    call, eager = call.requiring(*call.differentiable), call.requiring(*call.differentiable)
    curved(compiled(call, recorder)(*call.tensors)).backward()
    curved(eager()).backward()
    for place in call.differentiable:
        torch.testing.assert_close(call.tensors[place].grad, eager.tensors[place].grad, rtol=0, atol=0)  # type: ignore[union-attr]
    assert_nothing_but(recorder, {call.op.gradient_through or name, call.op.gradient})


def grown(call: Sample) -> Sample:
    """The call with twice the leading dim: the batch, the tokens, or the groups that have room for as many rows."""
    names = {argument.name for argument in call.op.signature.tensors}
    kept = {"k_cache", "v_cache", "cos", "sin", "sinks", "seq_lens", "block_table", "weight", "bias"}
    kept |= set() if "masked_m" in names else {"w", "w_scale"}
    kept |= {"out"} if "group_offsets" in names else set()
    tensors = []
    for argument, tensor in zip(call.op.signature.tensors, call.tensors, strict=True):
        if tensor is None or argument.name in kept:
            tensors.append(tensor)
        elif argument.name.startswith(("cu_seqlens", "group_")):  # as many sequences or groups, twice as long
            tensors.append(2 * tensor)
        else:
            tensors.append(torch.cat([tensor, tensor]))
    return replace(call, tensors=tuple(tensors))


@pytest.mark.parametrize("name", [n for n in ALL if not OPS[n].is_backward])
def test_another_batch_does_not_recompile(name: str, recorder: Recorder) -> None:
    small = sample(name)
    small.options.update({o: 64 for o in small.options if o.startswith("max_seqlen")})
    large = grown(small)
    function = compiled(small, recorder)
    for call in (small, large, grown(large)):
        eager, traced = call.copy(), call.copy()
        for tensor, one, other in zip(traced.tensors, small.tensors, large.tensors, strict=True):
            if tensor is not None and one.shape != other.shape:  # type: ignore[union-attr]
                torch._dynamo.mark_dynamic(tensor, 0)
        given = function(*traced.tensors)
        torch.testing.assert_close(given, eager(), rtol=0, atol=0)
        torch.testing.assert_close(traced.tensors, eager.tensors, rtol=0, atol=0)
    assert recorder.compilations == 1


@pytest.mark.parametrize("name", WITH_OUT)
def test_out(name: str, recorder: Recorder) -> None:
    call = sample(name)
    expected = outputs(call())
    out = tuple(torch.full_like(r, 7) for r in expected)
    given_out = out if len(out) > 1 else out[0]
    function = torch.compile(lambda *t, out: call.run(*t, out=out), fullgraph=True, backend=recorder)
    result = function(*call.tensors, out=given_out)
    for returned, written, wanted in zip(outputs(result), out, expected, strict=True):
        assert returned is written
        torch.testing.assert_close(written, wanted, rtol=0, atol=0)
    assert_nothing_but(recorder, {name})


@pytest.mark.parametrize("name", WITH_OUT)
def test_out_of_dynamic_sizes(name: str, recorder: Recorder) -> None:
    call = sample(name)
    expected = outputs(call())
    out = tuple(torch.full_like(r, 7) for r in expected)
    function = torch.compile(lambda *t, out: call.run(*t, out=out), fullgraph=True, dynamic=True, backend=recorder)
    function(*call.tensors, out=out if len(out) > 1 else out[0])
    torch.testing.assert_close(out, tuple(expected), rtol=0, atol=0)


def test_out_that_is_an_input(recorder: Recorder) -> None:
    call, eager = sample("rms_norm"), sample("rms_norm")
    function = torch.compile(lambda x, w: opmux.rms_norm(x, w, out=x, eps=1e-5), fullgraph=True, backend=recorder)
    function(*call.tensors)
    torch.testing.assert_close(call.tensors[0], eager(), rtol=0, atol=0)


def doubling(x: Tensor, weight: Tensor, **options: Any) -> Tensor:
    return OPS["rms_norm"].reference(x, weight, **options) * 2


def test_the_policy_holds_when_the_graph_runs(recorder: Recorder) -> None:
    call = sample("rms_norm")
    plain = call()
    with backends(double=implementation(doubling)):
        function = compiled(call, recorder)
        torch.testing.assert_close(function(*call.tensors), 2 * plain)
        opmux.policy.disable("double")
        torch.testing.assert_close(function(*call.tensors), plain)
        opmux.policy.reset()
        torch.testing.assert_close(function(*call.tensors), 2 * plain)
        with opmux.policy.override(prefer=["reference"]):
            torch.testing.assert_close(function(*call.tensors), plain)
        assert recorder.compilations == 1


def test_a_backend_that_comes_later_is_taken(recorder: Recorder) -> None:
    call = sample("rms_norm")
    plain = call()
    function = compiled(call, recorder)
    torch.testing.assert_close(function(*call.tensors), plain)
    with backends(double=implementation(doubling)):
        torch.testing.assert_close(function(*call.tensors), 2 * plain)
    torch.testing.assert_close(function(*call.tensors), plain)


def test_a_fault_in_a_graph_falls_back_without_recompiling(
    recorder: Recorder, messages: pytest.LogCaptureFixture
) -> None:
    def failing(*tensors: Any, **options: Any) -> Any:
        raise RuntimeError("no such kernel")

    call = sample("rms_norm")
    with backends(broken=implementation(failing)):
        torch.testing.assert_close(compiled(call, recorder)(*call.tensors), call(backend="reference"))
    assert recorder.compilations == 1
    assert "rms_norm: broken (opmux-broken 1.2.3) is quarantined on cpu" in messages.text


def test_backend_is_part_of_the_graph(recorder: Recorder) -> None:
    call = sample("rms_norm")
    with backends(double=implementation(doubling, priority=Priority.EXPERIMENTAL)):
        function = torch.compile(
            lambda *t: (call.run(*t), call.run(*t, backend="double")), fullgraph=True, backend=recorder
        )
        plain, doubled = function(*call.tensors)
        torch.testing.assert_close(doubled, 2 * plain)
    chosen = [node.kwargs.get("backend") for node in recorder.graphs[0].nodes if "rms_norm" in str(node.target)]
    assert chosen == [None, "double"]


def test_an_unknown_backend_is_an_error_of_the_graph(recorder: Recorder) -> None:
    call = sample("rms_norm")
    function = torch.compile(lambda *t: call.run(*t, backend="nobody"), fullgraph=True, backend=recorder)
    with pytest.raises(Exception, match="rms_norm: `backend` expected one of reference, got 'nobody'"):
        function(*call.tensors)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_wrong_shape_is_told_while_tracing(dynamic: bool, recorder: Recorder) -> None:
    function = torch.compile(opmux.rms_norm, fullgraph=True, backend=recorder, dynamic=dynamic)
    with pytest.raises(Exception, match=r"rms_norm: `weight` expected shape \[hidden\] = \["):
        function(torch.randn(5, 8), torch.randn(7))


def test_a_wrong_out_is_told_while_tracing(recorder: Recorder) -> None:
    function = torch.compile(opmux.rms_norm, fullgraph=True, backend=recorder)
    with pytest.raises(Exception, match=r"rms_norm: `out` expected float32\[5, 8\]"):
        function(torch.randn(5, 8), torch.randn(8), out=torch.empty(2, 5, 8))


def test_a_refused_gradient_is_told_while_tracing(recorder: Recorder) -> None:
    call = sample("quantize").requiring(0)
    with pytest.raises(Exception, match="quantize: no gradient is defined for this op"):
        compiled(call, recorder)(*call.tensors)


@pytest.mark.parametrize("name", [n for n in DIFFERENTIABLE if len(gradients_of(OPS[n])) > 1])
def test_the_graph_asks_only_for_gradients_that_are_wanted(name: str, recorder: Recorder) -> None:
    call = sample(name)
    call = call.requiring(call.differentiable[0])
    curved(compiled(call, recorder)(*call.tensors)).backward()
    backward = getattr(torch.ops.opmux, call.op.gradient).default
    (mask,) = [n.kwargs["output_mask"] for graph in recorder.graphs for n in graph.nodes if n.target == backward]
    assert list(mask) == [True] + [False] * (len(mask) - 1)


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_without_gradients(guard: Any, recorder: Recorder) -> None:
    call = sample("attention").requiring(0)
    with guard():
        given = compiled(call, recorder)(*call.tensors)
    assert not given.requires_grad
    assert recorder.ops == {"attention"}, "the form with lse is for gradients"


def test_a_transform_inside(recorder: Recorder) -> None:
    call = sample("rms_norm")
    x, weight = call.tensors

    def gradient(x: Tensor, weight: Tensor) -> Tensor:
        return torch.func.grad(lambda y: curved(call.run(y, weight)))(x)

    given = torch.compile(gradient, fullgraph=True, backend=recorder)(x, weight)
    torch.testing.assert_close(given, gradient(x, weight))  # type: ignore[arg-type]
    assert {"rms_norm", "rms_norm_backward"} <= recorder.ops


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_a_trace_of_forward_and_backward(mode: str) -> None:
    call = sample("attention").requiring(0)

    def gradient(*tensors: Tensor) -> Any:
        return torch.autograd.grad(total(call.run(*tensors)), tensors[0])

    graph = make_fx(gradient, tracing_mode=mode)(*call.tensors).graph
    traced = [str(n.target) for n in graph.nodes if "opmux" in str(n.target)]
    assert traced == ["opmux.attention_lse.default", "opmux.attention_backward.default"]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_compiled_autograd() -> None:
    """A backward that is compiled though its forward was not: one graph per op, options told apart."""
    torch._dynamo.reset()
    graphs: list[list[str]] = []

    def keep(module: fx.GraphModule, inputs: Any) -> Any:
        graphs.append([str(n.target) for n in module.graph.nodes if "opmux" in str(n.target)])
        return module.forward

    for name, options, compilations in [
        ("rms_norm", {}, 1),
        ("layer_norm", {}, 2),
        ("rms_norm", {"weight_offset": 1.0}, 3),
        ("rms_norm", {}, 3),
    ]:
        compiled_call, eager = sample(name).requiring(0), sample(name).requiring(0)
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend=keep)):
            curved(compiled_call(**options)).backward()
        curved(eager(**options)).backward()
        torch.testing.assert_close(compiled_call.tensors[0].grad, eager.tensors[0].grad)  # type: ignore[union-attr]
        assert len(graphs) == compilations
    assert graphs == [[f"opmux.{op}_backward.default"] for op in ("rms_norm", "layer_norm", "rms_norm")]
    torch._dynamo.reset()


def test_sizes_that_depend_on_data(recorder: Recorder) -> None:
    def chosen(x: Tensor, weight: Tensor, mask: Tensor) -> Tensor:
        rows = x[mask.nonzero().squeeze(1)]
        rows = opmux.silu_and_mul(opmux.linear(opmux.rms_norm(rows, weight[0]), weight))
        heads = rows.view(1, -1, 2, 2)
        return opmux.attention(heads, heads, heads, causal=True)

    x, weight = torch.randn(5, 8), torch.randn(8, 8)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        function = torch.compile(chosen, fullgraph=True, backend=recorder)
        for rows in (3, 5, 2):
            mask = torch.arange(5) < rows
            torch.testing.assert_close(function(x, weight, mask), chosen(x, weight, mask), rtol=0, atol=0)
    assert recorder.compilations == 1


def test_autocast_inside(recorder: Recorder) -> None:
    def function(x: Tensor, weight: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return opmux.linear(x, weight)

    x, weight = torch.randn(5, 8), torch.randn(3, 8)
    given = torch.compile(function, fullgraph=True, backend=recorder)(x, weight)
    torch.testing.assert_close(given, opmux.linear(x, weight), rtol=0, atol=0)


def train(block: Block, x: Tensor, step: Any) -> list[Tensor]:
    optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
    step(x).square().mean().backward()
    optimizer.step()
    return [p.detach().clone() for p in block.parameters()]


def test_a_model_trains_as_in_eager_mode(recorder: Recorder) -> None:
    x = torch.randn(2, 5, 32)
    block, eager = Block(), Block()
    given = train(block, x, torch.compile(block, fullgraph=True, backend=recorder))
    for parameter, expected in zip(given, train(eager, x, eager), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=0, atol=0)
    forward = (BLOCK_OPS - {"attention"}) | {"attention_lse"}
    assert recorder.ops == forward | {f"{op}_backward" for op in BLOCK_OPS}


def test_a_model_with_a_dynamic_batch_and_sequence_compiles_once(recorder: Recorder) -> None:
    block = Block()
    function = torch.compile(block, fullgraph=True, backend=recorder)
    for batch, seq in [(2, 5), (3, 7), (4, 6)]:
        x = torch.randn(batch, seq, 32)
        torch._dynamo.mark_dynamic(x, 0)
        torch._dynamo.mark_dynamic(x, 1)
        given = function(x)
        torch.testing.assert_close(given, block(x), rtol=0, atol=0)
        given.sum().backward()
    assert recorder.compilations == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real code, once: forward and backward, with an op that writes in place between torch's own."""
    # Probing the machine for vector instructions compiles ten programs, and this test is not about them.
    monkeypatch.setattr("torch._inductor.cpu_vec_isa.valid_vec_isa_list", list)
    monkeypatch.setattr(torch._inductor.config, "compile_threads", 1)
    torch._dynamo.reset()

    def model(x: Tensor, residual: Tensor, weight: Tensor, to_gate: Tensor) -> Tensor:
        opmux.add_rms_norm_(residual, residual * 2, weight.detach())
        hidden = opmux.rms_norm(torch.relu(x) + 1, weight)
        gate = opmux.linear(hidden, to_gate)
        return opmux.silu_mul(gate, gate)

    given = (torch.randn(4, 32), torch.randn(4, 32), torch.randn(32), torch.randn(32, 32))
    results = []
    for function in (model, torch.compile(model, fullgraph=True)):
        x, residual, weight, to_gate = (t.clone() for t in given)
        trained = [t.requires_grad_() for t in (x, weight, to_gate)]
        out = function(x, residual, weight, to_gate)
        results.append([out, residual, *torch.autograd.grad(total(out), trained)])
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-5)
    torch._dynamo.reset()
