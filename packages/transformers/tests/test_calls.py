"""Children that are hooked, wrapped, exchanged or adapted after the patch are called."""

import copy
from collections.abc import Callable

import pytest
import torch
from samples import CLOSE, ids, logits, model, pair
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import opmux
import opmux_transformers


def agree(patched, plain) -> None:
    torch.testing.assert_close(logits(patched, ids()), logits(plain, ids()), **CLOSE)


def steps(of, cache=None) -> torch.Tensor:
    """Logits of a prompt and of two tokens after it, which come one by one."""
    tokens = ids(8)
    parts = [logits(of, tokens[:, a:b], past_key_values=cache, use_cache=True) for a, b in ((0, 6), (6, 7), (7, 8))]
    return torch.cat(parts, dim=1)


def steps_agree(patched, plain) -> None:
    expected = logits(plain, ids(8))
    torch.testing.assert_close(steps(patched, opmux_transformers.PagedCache(patched)), expected, **CLOSE)
    agree(patched, plain)


class Doubled(nn.Module):
    """Another module's result, twice."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) * 2


@pytest.mark.parametrize("name", ["llama", "phi3"])
def test_hooks_on_the_activation_still_fire(name: str) -> None:
    plain, patched = pair(name)
    opmux_transformers.patch(patched)
    for of in (plain, patched):
        mlp = of.model.layers[0].mlp
        activation = mlp.act_fn if name == "llama" else mlp.activation_fn
        activation.register_forward_hook(lambda _, args, result: result * 2)
    agree(patched, plain)


def test_another_activation_is_called() -> None:
    plain, patched = pair()
    opmux_transformers.patch(patched)
    for of in (plain, patched):
        of.model.layers[0].mlp.act_fn = nn.ReLU()
    with opmux.trace() as trace:
        agree(patched, plain)
    assert {row.op: row.calls for row in trace.rows}["silu_mul"] == 1


@pytest.mark.parametrize("of_what", [lambda norm: nn.LayerNorm(64), Doubled], ids=["another", "wrapped"])
def test_another_norm_after_the_residual_sum_is_called(of_what) -> None:
    plain, patched = pair()
    opmux_transformers.patch(patched)
    for of in (plain, patched):
        layer = of.model.layers[0]
        layer.post_attention_layernorm = of_what(layer.post_attention_layernorm)
    agree(patched, plain)


def test_a_forward_that_is_wrapped_after_the_patch_is_called() -> None:
    plain, patched = pair()
    opmux_transformers.patch(patched)
    for of in (plain, patched):
        norm = of.model.layers[0].post_attention_layernorm
        norm.forward = lambda x, own=norm.forward: own(x) * 2
    agree(patched, plain)


def test_backward_hooks_on_the_fused_norm_fire() -> None:
    patched = model()
    opmux_transformers.patch(patched)
    seen = []
    patched.model.layers[0].post_attention_layernorm.register_full_backward_hook(lambda *call: seen.append(call))
    patched(ids(), labels=ids()).loss.backward()
    assert len(seen) == 1


def test_adapters_around_linears_are_called() -> None:
    class Adapter(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base, self.in_features, self.out_features = base, base.in_features, base.out_features
            self.down, self.up = nn.Linear(base.in_features, 4, bias=False), nn.Linear(4, base.out_features, bias=False)

        def forward(self, x):
            return self.base(x) + self.up(self.down(x))

    def adapt(of) -> None:
        torch.manual_seed(3)
        for path, child in list(of.model.named_modules()):
            if type(child) is nn.Linear:
                parent, _, name = path.rpartition(".")
                setattr(of.model.get_submodule(parent), name, Adapter(child))

    plain, patched = pair()
    opmux_transformers.patch(patched)
    for of in (plain, patched):
        adapt(of)
    agree(patched, plain)
    adapted_first = copy.deepcopy(plain)
    report = opmux_transformers.patch(adapted_first)
    assert report.replaced("gate") == 2
    agree(adapted_first, plain)


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_another_dtype_after_the_patch(name: str) -> None:
    plain, patched = pair(name)
    opmux_transformers.patch(patched)
    for of in (plain, patched):
        of.half()
    torch.testing.assert_close(logits(patched, ids()), logits(plain, ids()), rtol=2e-2, atol=5e-2)


CHILDREN = (
    "input_layernorm", "post_attention_layernorm", "mlp", "mlp.act_fn", "mlp.gate_proj", "mlp.down_proj",
    "self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "self_attn.q_norm", "self_attn.k_norm",
)  # fmt: skip


LINEARS = tuple(path for path in CHILDREN if path.endswith("_proj"))


class Twice(nn.Module):
    """A parametrisation."""

    def forward(self, weight):
        return weight * 2


def _forward_hook(child: nn.Module) -> None:
    child.register_forward_hook(lambda _, args, result: result * 2)


def _hook_that_is_always_called(child: nn.Module) -> None:
    child.register_forward_hook(lambda _, args, result: result * 2, always_call=True)


def _pre_hook(child: nn.Module) -> None:
    child.register_forward_pre_hook(lambda _, args: (args[0] * 2, *args[1:]))


def _wrapped_forward(child: nn.Module) -> None:
    child.forward = lambda *args, own=child.forward, **kwargs: own(*args, **kwargs) * 2


def _another_class(child: nn.Module) -> None:
    class Changed(type(child)):
        def __call__(self, *args, **kwargs):
            return super().__call__(*args, **kwargs) * 2

    child.__class__ = Changed


@pytest.mark.parametrize("path", CHILDREN)
@pytest.mark.parametrize(
    "change", [_forward_hook, _hook_that_is_always_called, _pre_hook, _wrapped_forward, _another_class]
)
def test_a_child_that_is_changed_is_called(path: str, change: Callable[[nn.Module], None]) -> None:
    plain, patched = pair("qwen3")
    opmux_transformers.patch(patched)
    for of in (plain, patched):
        change(of.model.layers[0].get_submodule(path))
    steps_agree(patched, plain)


@pytest.mark.parametrize("path", CHILDREN)
def test_a_child_that_is_wrapped_is_called(path: str) -> None:
    plain, patched = pair("qwen3")
    opmux_transformers.patch(patched)
    for of in (plain, patched):
        where, _, name = path.rpartition(".")
        parent = of.model.layers[0].get_submodule(where)
        setattr(parent, name, Doubled(getattr(parent, name)))
    steps_agree(patched, plain)


def _parametrised(child: nn.Module) -> None:
    parametrize.register_parametrization(child, "weight", Twice())


def _normed(child: nn.Module) -> None:
    parametrizations.weight_norm(child)
    with torch.no_grad():
        child.parametrizations.weight.original0.mul_(2)


def _pruned(child: nn.Module) -> None:
    prune.custom_from_mask(child, "weight", torch.arange(child.weight.numel()).view_as(child.weight) % 3 > 0)


def _plain_tensors(child: nn.Module) -> None:
    weight = child.weight.detach() * 2
    del child.weight, child.bias
    child.weight, child.bias = weight, torch.ones(len(weight))


@pytest.mark.parametrize("path", LINEARS)
@pytest.mark.parametrize("change", [_parametrised, _normed, _pruned, _plain_tensors])
def test_a_linear_with_other_weights(path: str, change: Callable[[nn.Module], None]) -> None:
    plain, patched = pair()
    opmux_transformers.patch(patched)
    for of in (plain, patched):
        change(of.model.layers[0].get_submodule(path))
    steps_agree(patched, plain)


@pytest.mark.parametrize("path", [path for path in CHILDREN if path.endswith("norm")])
def test_a_norm_with_a_parametrised_weight(path: str) -> None:
    plain, patched = pair("qwen3")
    opmux_transformers.patch(patched)
    for of in (plain, patched):
        _parametrised(of.model.layers[0].get_submodule(path))
    steps_agree(patched, plain)


@pytest.mark.parametrize("name", ["llama", "phi3"])
def test_hooks_for_all_modules_see_every_linear(name: str) -> None:
    plain, patched = pair(name)
    opmux_transformers.patch(patched)
    seen: list[str] = []

    def note(module: nn.Module, *_) -> None:
        if type(module) is nn.Linear:
            seen.append(repr(module))

    handle = nn.modules.module.register_module_forward_hook(note)
    try:
        steps(plain)
        expected, seen[:] = seen[:], []
        steps(patched, opmux_transformers.PagedCache(patched))
    finally:
        handle.remove()
    assert seen == expected != []


def test_hooks_that_are_removed_leave_the_ops() -> None:
    patched = model("qwen3")
    opmux_transformers.patch(patched)
    layer = patched.model.layers[0]
    for path in CHILDREN:
        layer.get_submodule(path).register_forward_hook(lambda _, args, result: result * 2).remove()
    with opmux.trace() as trace:
        logits(patched, ids())
    assert {row.op: row.calls for row in trace.rows}["add_rms_norm"] == 2


def test_a_forward_of_linears_that_the_process_replaces_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, patched = pair()
    opmux_transformers.patch(patched)
    own = nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: own(self, x) * 2)
    steps_agree(patched, plain)


@pytest.mark.parametrize(("cls", "name"), [(nn.Linear, "__call__"), (nn.Module, "__call__"), (nn.Module, "_call_impl")])
def test_calls_of_modules_that_the_process_replaces_see_every_linear(
    monkeypatch: pytest.MonkeyPatch, cls: type[nn.Module], name: str
) -> None:
    _, patched = pair()
    opmux_transformers.patch(patched)
    own, seen = getattr(cls, name), []

    def replaced(self, *args, **kwargs):
        seen.append(type(self))
        return own(self, *args, **kwargs)

    monkeypatch.setattr(cls, name, replaced, raising=False)
    logits(patched, ids())
    assert seen.count(nn.Linear) == 2 * 7 + 1


@pytest.mark.parametrize("changed", [{"scaling": 0.5}, {"sliding_window": 3}])
def test_attributes_of_an_attention_are_read_when_it_is_called(changed: dict[str, float]) -> None:
    plain, patched = pair("qwen3")
    opmux_transformers.patch(patched)
    for of in (plain, patched):
        for layer in of.model.layers:
            for name, value in changed.items():
                setattr(layer.self_attn, name, value)
    last = steps(patched, opmux_transformers.PagedCache(patched))[:, -1]
    torch.testing.assert_close(last, logits(patched, ids(8))[:, -1], **CLOSE)
    if "scaling" in changed:  # transformers' own takes its window from the mask
        steps_agree(patched, plain)


def test_a_compiled_child_is_called() -> None:
    plain, patched = pair()
    opmux_transformers.patch(patched)
    calls = []
    mlp = patched.model.layers[0].mlp
    mlp.compile(backend=lambda graph, example: calls.append(1) or graph.forward)
    agree(patched, plain)
    assert calls


def test_fully_sharded_modules_are_called() -> None:
    from torch import distributed
    from torch.distributed.fsdp import fully_shard

    plain, patched = pair("qwen3")
    opmux_transformers.patch(patched)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = distributed.device_mesh.init_device_mesh("cpu", (1,))
        for layer in patched.model.layers:
            for path in ("mlp.down_proj", "self_attn.q_proj", "self_attn.q_norm", "post_attention_layernorm"):
                fully_shard(layer.get_submodule(path), mesh=mesh)
            fully_shard(layer, mesh=mesh)
        fully_shard(patched, mesh=mesh)
        steps_agree(patched, plain)
    finally:
        distributed.destroy_process_group()
