"""A patched model that is changed: hooked, wrapped, given other modules, replicated, its attention taken back."""

import copy

import pytest
import torch
from samples import CLOSE, GREEDY, ids, logits, model, pair
from torch import nn

import opmux
import opmux_transformers


def agree(patched, plain) -> None:
    torch.testing.assert_close(logits(patched, ids()), logits(plain, ids()), **CLOSE)


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


def replica_of(of: nn.Module, change) -> nn.Module:
    """A replica as torch.nn.DataParallel makes it, with other values for its parameters."""
    modules = list(of.modules())
    copies = {id(m): m._replicate_for_data_parallel() for m in modules}
    for module in modules:
        replica = copies[id(module)]
        for name, child in module._modules.items():
            setattr(replica, name, None if child is None else copies[id(child)])
        for name, parameter in module._parameters.items():
            setattr(replica, name, None if parameter is None else change(parameter.detach()))
    return copies[id(of)]


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_replicas_compute_with_their_own_parameters(name: str) -> None:
    plain, patched = pair(name)
    opmux_transformers.patch(patched)
    replica = replica_of(patched, lambda parameter: parameter * 1.5)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.mul_(1.5)
        with opmux.trace() as trace:
            got = replica(ids()).logits
    torch.testing.assert_close(got, logits(plain, ids()), **CLOSE)
    assert {"attention", "add_rms_norm", "apply_rope"} <= {row.op for row in trace.rows}


def test_generate_after_attention_was_taken_back_keeps_its_ordinary_cache() -> None:
    plain, patched = pair()
    opmux_transformers.patch(patched)
    mask = torch.ones_like(ids())
    expected = plain.generate(ids(), attention_mask=mask, **GREEDY)
    for name in ("sdpa", "opmux", "eager"):
        patched.set_attn_implementation(name)
        assert torch.equal(patched.generate(ids(), attention_mask=mask, **GREEDY), expected)


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
