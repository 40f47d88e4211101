"""What torch does with modules, it does with these: compile, checkpoint, copy, save, cast, parametrise."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from nn.blocks import HEADS, HIDDEN, KV_HEADS, Block, Model, inputs, randomise
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

import opmux
from opmux import nn

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")


@pytest.fixture
def model() -> Model:
    model = Model()
    randomise(model)
    return model


def gradients(run: Any, module: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The result, and the gradients of x and of every parameter."""
    x = x.clone().requires_grad_()
    module.zero_grad()
    result = run(x)
    result.square().mean().backward()
    return [result.detach(), x.grad, *(p.grad.clone() for p in module.parameters())]


def close(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compile_makes_one_graph(model: Model, dynamic: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for seq in (5, 9):
        x = inputs(2, seq, HIDDEN)
        close(gradients(compiled, model, x), gradients(model, model, x))
    torch._dynamo.reset()


@torch.no_grad()
def test_compile_with_contexts(model: Model) -> None:
    torch._dynamo.reset()
    block = model.layers[0]
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    x = inputs(12, HIDDEN)
    packed = nn.PackedSequences.of([3, 9])
    close(compiled(x, context=packed), block(x, context=packed))
    caches = [nn.PagedCache(1, 4, 16, KV_HEADS, HIDDEN // HEADS) for _ in range(2)]
    for tokens in ({0: 3, 1: 9}, {0: 1, 1: 1}, {0: 1, 1: 1}, {1: 4}):
        part = x[: sum(tokens.values())]
        got, wanted = (
            run(part, context=c.layer(0, c.step(tokens))) for run, c in zip((compiled, block), caches, strict=True)
        )
        close(got, wanted)
    close(caches[0].data, caches[1].data)
    torch._dynamo.reset()


def test_compile_holds_the_ops_in_its_graph(model: Model) -> None:
    torch._dynamo.reset()
    targets: list[str] = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        targets.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    torch.compile(model, fullgraph=True, backend=keep)(inputs(2, 5, HIDDEN))
    ops = {"rms_norm", "linear", "apply_rope", "attention", "add_layer_norm", "gelu_mul"}
    assert {f"opmux.{op}.default" for op in ops} <= set(targets)
    torch._dynamo.reset()


def test_export(model: Model) -> None:
    x = inputs(2, 5, HIDDEN)
    program = torch.export.export(model, (x,))
    close(program.module()(x), model(x))


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(model: Model, reentrant: bool) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        for layer in model.layers:
            x = checkpoint(layer, x, use_reentrant=reentrant)
        return model.head(x)

    x = inputs(2, 5, HIDDEN)
    close(gradients(run, model, x), gradients(model, model, x))


def test_checkpointing_packed_sequences(model: Model) -> None:
    packed, x = nn.PackedSequences.of([2, 6]), inputs(8, HIDDEN)
    layer = model.layers[0]
    got = gradients(lambda x: checkpoint(layer, x, None, packed, use_reentrant=False), layer, x)
    close(got, gradients(lambda x: layer(x, None, packed), layer, x))


def test_parametrize(model: Model) -> None:
    class Doubled(torch.nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return 2 * weight

    x, block = inputs(2, 5, HIDDEN), model.layers[0]
    expected = copy.deepcopy(block)
    with torch.no_grad():
        for name in ("first.weight", "attention.q_proj.weight", "attention.sinks", "mlp.up_proj.weight"):
            expected.get_parameter(name).mul_(2)
    for holder, name in (
        (block.first, "weight"),
        (block.attention.q_proj, "weight"),
        (block.attention, "sinks"),
        (block.mlp.up_proj, "weight"),
    ):
        parametrize.register_parametrization(holder, name, Doubled())
    close(block(x), expected(x))
    parametrizations.weight_norm(model.head)
    assert len(gradients(model, model, x)) == 2 + len(list(model.parameters()))


def test_deepcopy(model: Model) -> None:
    x = inputs(2, 5, HIDDEN)
    other = copy.deepcopy(model)
    assert other.layers[0].attention.rotary is other.layers[1].attention.rotary is other.rotary
    close(gradients(other, other, x), gradients(model, model, x))
    with torch.no_grad():
        other.head.weight.zero_()
    assert not torch.equal(other(x), model(x))


def test_pickle_and_state_dict(model: Model) -> None:
    x = inputs(2, 5, HIDDEN)
    close(pickle.loads(pickle.dumps(model))(x), model(x))
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    fresh = Model()
    assert not torch.allclose(fresh(x), model(x))
    fresh.load_state_dict(torch.load(buffer))
    close(fresh(x), model(x))
    assert not [name for name in model.state_dict() if "rotary" in name or "cos" in name]


def test_casting(model: Model) -> None:
    x = inputs(2, 5, HIDDEN)
    expected = model(x).detach()
    half = copy.deepcopy(model).to(torch.bfloat16)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    assert half.rotary.cos.dtype is torch.float32
    torch.testing.assert_close(
        half(x.bfloat16()).detach().float(), expected, rtol=0.1, atol=0.1 * float(expected.abs().max())
    )
    torch.testing.assert_close(copy.deepcopy(model).double()(x.double()).float(), expected, rtol=1e-3, atol=1e-4)


def test_from_the_meta_device(model: Model) -> None:
    x = inputs(2, 5, HIDDEN)
    with torch.device("meta"):
        empty = Model()
    assert all(t.is_meta for t in (*empty.parameters(), *empty.buffers()))
    assert empty(x.to("meta")).shape == (2, 5, 11)
    made = empty.to_empty(device="cpu")
    made.load_state_dict(model.state_dict())
    close(made(x), model(x))
    with torch.device("meta"):
        assigned = Model()
    assigned.load_state_dict(model.state_dict(), assign=True)
    assert assigned.head.weight.data_ptr() == model.head.weight.data_ptr()
    close(assigned(x), model(x))


def test_reset_parameters_fills_everything() -> None:
    with torch.device("meta"):
        block = Block()
    block.to_empty(device="cpu")
    with torch.no_grad():
        for weight in block.parameters():
            weight.fill_(float("nan"))
    for module in block.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    assert not any(bool(weight.isnan().any()) for weight in block.parameters())
    assert bool(block(inputs(2, 5, HIDDEN)).isfinite().all())


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_autocast(model: Model, compiled: bool) -> None:
    torch._dynamo.reset()
    run = torch.compile(model, fullgraph=True, backend="aot_eager") if compiled else model
    x = inputs(2, 5, HIDDEN)
    expected = gradients(model, model, x)
    with torch.autocast("cpu", torch.bfloat16):
        assert run(x).dtype is torch.bfloat16
        assert model.layers[0](x).dtype is torch.float32  # the residual stream
        got = gradients(run, model, x)
    for one, wanted in zip(got, expected, strict=True):
        assert one.dtype is wanted.dtype or one is got[0]
        torch.testing.assert_close(one.float(), wanted, rtol=0.1, atol=0.1 * float(wanted.abs().max()) + 1e-3)
    torch._dynamo.reset()


def test_autocast_leaves_float64_and_takes_mixed_dtypes() -> None:
    linear = nn.Linear(8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert nn.Linear(8, 8, dtype=torch.float64)(inputs(2, 8, dtype=torch.float64)).dtype is torch.float64
        torch.testing.assert_close(
            linear(inputs(2, 8).bfloat16()), torch.nn.functional.linear(inputs(2, 8), linear.weight, linear.bias)
        )
        assert nn.Linear(8, 8, device="meta")(torch.empty(2, 8, device="meta")).dtype is torch.float32


@pytest.mark.parametrize("norm", [nn.LayerNorm(8), nn.RMSNorm(8)], ids=["layer", "rms"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_norm_keeps_the_dtype_of_its_input_under_autocast(norm: Any, dtype: torch.dtype) -> None:
    x = inputs(2, 8, dtype=dtype)
    with torch.autocast("cpu", torch.bfloat16):
        y, total = norm(x, x)
        assert [norm(x).dtype, y.dtype, total.dtype] == [dtype] * 3


def test_torch_func(model: Model) -> None:
    x, parameters = inputs(2, 5, HIDDEN), dict(model.named_parameters())
    result = torch.func.grad(lambda p: torch.func.functional_call(model, p, (x,)).square().mean())(parameters)
    close(list(result.values()), gradients(model, model, x)[2:])


def test_a_head_tied_to_an_embedding() -> None:
    embedding, head = torch.nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)
    head.weight = embedding.weight
    head(embedding(torch.arange(4))).sum().backward()
    assert embedding.weight.grad is head.weight.grad


def test_importing_opmux_does_not_import_the_modules() -> None:
    import subprocess
    import sys

    code = (
        "import sys, opmux\n"
        "print('opmux.nn' in sys.modules, opmux.nn.Linear.__module__, 'opmux.nn' in sys.modules)\n"
        "print(any(name.split('.')[0] in ('triton', 'pytest') or name == 'torch._dynamo' for name in sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "opmux.nn.linear", "True", "False"]


def test_every_public_name_is_documented() -> None:
    for name in nn.__all__:
        assert getattr(nn, name).__doc__
        assert getattr(opmux.nn, name) is getattr(nn, name)
