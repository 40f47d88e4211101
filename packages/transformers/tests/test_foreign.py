"""What another library has patched is left to it, and named."""

import copy
import types
from typing import Any

import pytest
import torch
import transformers
from samples import LLAMA, SIZES, agree, model, pair, reasons
from torch import nn

import opmux_transformers
from opmux_transformers.foreign import behind


def test_a_model_patched_by_another_library_on_its_instances() -> None:
    plain = model()
    for layer in plain.model.layers:
        own = layer.mlp.forward

        def forward(self, x, own=own.__func__):
            return own(self, x)

        forward.__module__ = "other_library.ops"
        layer.mlp.forward = types.MethodType(forward, layer.mlp)
    patched = copy.deepcopy(plain)
    before = {id(layer.mlp.forward.__func__) for layer in patched.model.layers}
    report = opmux_transformers.patch(patched)
    assert set(reasons(report, "gate").values()) == {
        "already patched: its forward was replaced by other_library.ops."
        "test_a_model_patched_by_another_library_on_its_instances.<locals>.forward"
    }
    agree(patched, plain)
    opmux_transformers.unpatch(patched)
    assert {id(layer.mlp.forward.__func__) for layer in patched.model.layers} == before


def test_a_model_patched_by_another_library_in_its_classes(monkeypatch) -> None:
    source = transformers.models.llama.modeling_llama
    own = source.LlamaRMSNorm.forward
    scope = {"__name__": "other_library.norm", "own": own}
    exec("def forward(self, hidden_states):\n    return own(self, hidden_states)", scope)
    monkeypatch.setattr(source.LlamaRMSNorm, "forward", scope["forward"])
    plain, patched = pair()
    report = opmux_transformers.patch(patched)
    assert set(reasons(report, "norm").values()) == {
        "already patched: the forward of class LlamaRMSNorm was replaced by other_library.norm.forward"
    }
    agree(patched, plain)


def test_a_rotation_patched_by_another_library(monkeypatch) -> None:
    source = transformers.models.llama.modeling_llama
    scope = {"__name__": "other_library.rope", "own": source.apply_rotary_pos_emb}
    exec("def rotate(q, k, cos, sin, unsqueeze_dim=1):\n    return own(q, k, cos, sin, unsqueeze_dim)", scope)
    monkeypatch.setattr(source, "apply_rotary_pos_emb", scope["rotate"])
    plain, patched = pair()
    report = opmux_transformers.patch(patched)
    assert set(reasons(report, "rope").values()) == {"already patched: apply_rotary_pos_emb comes from other_library"}
    assert report.replaced("attention") == 2
    agree(patched, plain)


def hub_function(function: Any) -> nn.Module:
    """A module in the place of a function, as the package kernels makes them for transformers."""

    class Func(nn.Module):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

    Func.__module__ = "kernels.layer.layer"
    return Func()


def test_a_rotation_that_a_hub_may_replace(monkeypatch) -> None:
    source = transformers.models.llama.modeling_llama
    own = source.apply_rotary_pos_emb
    held = hub_function(own)
    assert behind(held) is own
    monkeypatch.setattr(source, "apply_rotary_pos_emb", held)
    plain, patched = pair()
    report = opmux_transformers.patch(patched)
    assert report.replaced("rope") == 2
    assert report.replaced("rope tables") == 1
    agree(patched, plain)


def test_a_rotation_that_a_hub_has_replaced(monkeypatch) -> None:
    source = transformers.models.llama.modeling_llama
    own = source.apply_rotary_pos_emb
    held = hub_function(own)
    held.forward = lambda *args, **kwargs: tuple(1.5 * x for x in own(*args, **kwargs))
    assert behind(held) is held
    monkeypatch.setattr(source, "apply_rotary_pos_emb", held)
    plain, patched = pair()
    report = opmux_transformers.patch(patched)
    assert report.replaced("rope") == 0
    assert report.replaced("attention") == 2
    agree(patched, plain)


def test_a_module_that_computes_otherwise_than_what_it_holds(monkeypatch) -> None:
    source = transformers.models.llama.modeling_llama
    own = source.apply_rotary_pos_emb

    class Scaled(nn.Module):
        def forward(self, *args: Any) -> Any:
            return tuple(1.5 * x for x in own(*args))

    monkeypatch.setattr(source, "apply_rotary_pos_emb", Scaled())
    plain, patched = pair()
    report = opmux_transformers.patch(patched)
    assert report.replaced("rope") == 0
    agree(patched, plain)


@pytest.mark.parametrize("function", [None, len, nn.Linear(2, 2), lambda: None])
def test_what_stands_for_itself(function: Any) -> None:
    assert behind(function) is function


KERNELS = """
class OtherMLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj, self.up_proj = nn.Linear(hidden, inner, bias=False), nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class OtherRMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.ones(hidden_size)), eps

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))
"""


def classes_of(package: str) -> types.ModuleType:
    module = types.ModuleType(f"{package}.layers")
    module.__dict__.update(nn=nn, torch=torch)
    exec(compile(KERNELS, f"{package}.py", "exec"), module.__dict__)
    return module


@pytest.mark.parametrize(("package", "named"), [("liger_kernel", True), ("my_own_models", False)])
def test_classes_that_a_package_of_kernels_put_in_place_are_left_and_named(package: str, named, monkeypatch) -> None:
    other = classes_of(package)
    monkeypatch.setattr(LLAMA, "LlamaMLP", other.OtherMLP)
    monkeypatch.setattr(LLAMA, "LlamaRMSNorm", other.OtherRMSNorm)
    plain, patched = pair()
    report = opmux_transformers.patch(patched)
    for kind, count in (("norm", 5), ("gate", 2)):
        expected = ["already patched: its class comes from liger_kernel"] * count if named else []
        assert list(reasons(report, kind).values()) == expected
    agree(patched, plain)


def test_a_model_of_such_a_package_itself_is_judged() -> None:
    other = classes_of("flash_attn")
    config = transformers.LlamaConfig(**SIZES)
    holder = type("Block", (nn.Sequential,), {"__module__": "flash_attn.models"})
    patched = holder(other.OtherRMSNorm(64), nn.ModuleList([other.OtherMLP(config)]))
    report = opmux_transformers.patch(patched)
    assert report.replaced("norm") == report.replaced("gate") == 1
