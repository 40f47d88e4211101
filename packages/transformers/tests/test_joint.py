"""Joint weights: one product for linears with the same input, as long as each of them has its part."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from quantised import WIDE, as_fp8, calls_of
from samples import agree, deep_looks, first_of, ids, logits, model

import opmux.nn
import opmux_transformers
from opmux_transformers.joint import JOINT

EACH = 4
"""Products of a layer: queries, keys and values; their output; gate and up projection; down projection."""


def quantised(way: str = "quantize_", name: str = "llama", **sizes: Any) -> Any:
    made = model(name, **sizes)
    if way == "quantize_":
        opmux.nn.quantize_(made)
    opmux_transformers.patch(made, **({"quantize": way} if way != "quantize_" else {}))
    return made


def products_of(patched: Any) -> int:
    return calls_of(patched, lambda of: logits(of, ids()))["scaled_linear"]


def unjoined(patched: Any) -> Any:
    """A copy that multiplies one weight after another."""
    made = copy.deepcopy(patched)
    for module in made.modules():
        vars(module).pop(JOINT, None)
    return made


@pytest.mark.parametrize("way", ["quantize_", "fp8", "int8"])
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2"])
def test_a_layer_has_four_products_with_the_same_results(way: str, name: str) -> None:
    patched = quantised(way, name)
    assert products_of(patched) == 2 * EACH
    apart = unjoined(patched)
    assert products_of(apart) == 2 * 7
    agree(patched, apart)


def test_blocks_are_joined_where_they_end_with_a_weight() -> None:
    patched = as_fp8(model("llama", **{**WIDE, "hidden_size": 512, "intermediate_size": 300}))
    opmux_transformers.patch(patched)
    assert products_of(patched) == 2 * (1 + 1 + 2 + 1)  # the gate's last block of rows is not whole
    agree(patched, unjoined(patched))


def test_weights_keep_names_values_and_memory() -> None:
    plain = model("llama")
    opmux.nn.quantize_(plain)
    before = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
    looks = deep_looks(plain)
    opmux_transformers.patch(plain)
    after = plain.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[n].view(torch.uint8), t.view(torch.uint8)) for n, t in before.items())
    attention = plain.model.layers[0].self_attn
    own, joint = attention.k_proj.weight, vars(attention)[JOINT]
    assert own.untyped_storage().data_ptr() == joint.weight.untyped_storage().data_ptr()
    assert joint.weight.shape[0] == sum(attention.get_submodule(name).out_features for name in joint.names)
    opmux_transformers.unpatch(plain)
    assert JOINT not in vars(attention)
    assert deep_looks(plain) == looks


def test_a_linear_that_gets_another_weight_multiplies_alone() -> None:
    patched = quantised()
    before = logits(patched, ids())
    attention = patched.model.layers[0].self_attn
    attention.k_proj.weight.data = attention.k_proj.weight.data.clone()
    assert products_of(patched) == 2 * EACH + 2
    assert torch.equal(logits(patched, ids()), before)
    mlp = patched.model.layers[1].mlp
    mlp.up_proj.weight = torch.nn.Parameter(mlp.up_proj.weight.data.clone(), requires_grad=False)
    assert products_of(patched) == 2 * EACH + 3
    assert torch.equal(logits(patched, ids()), before)
    opmux_transformers.patch(patched)
    assert products_of(patched) == 2 * EACH


def test_writes_in_place_reach_the_joint_weight() -> None:
    patched, other = quantised(), model("llama")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    opmux.nn.quantize_(other)
    patched.load_state_dict(other.state_dict())
    assert products_of(patched) == 2 * EACH
    agree(patched, unjoined(patched))
    opmux_transformers.patch(other)
    assert torch.equal(logits(patched, ids()), logits(other, ids()))


def test_codes_of_weights_that_change_are_made_again_alone() -> None:
    patched = quantised("fp8")
    with torch.no_grad():
        patched.model.layers[0].self_attn.q_proj.weight.mul_(2)
    assert products_of(patched) == 2 * EACH + 2
    agree(patched, unjoined(patched))
    before = logits(patched, ids())
    opmux_transformers.patch(patched, quantize="fp8")
    assert products_of(patched) == 2 * EACH
    assert torch.equal(logits(patched, ids()), before)


@pytest.mark.parametrize("way", first_of(["quantize_", "fp8"]))
def test_in_a_compiled_model(way: str) -> None:
    patched = quantised(way)
    torch.compiler.reset()
    compiled = torch.compile(patched, backend="aot_eager", fullgraph=True)
    assert torch.equal(logits(compiled, ids()), logits(patched, ids()))
    assert products_of(compiled) == 2 * EACH
    up = patched.model.layers[1].mlp.up_proj
    if way == "fp8":
        with torch.no_grad():
            up.weight.mul_(2)
        opmux_transformers.patch(patched, quantize="fp8")
    else:
        up.weight_scale = torch.nn.Parameter(2 * up.weight_scale.data, requires_grad=False)
    assert torch.equal(logits(compiled, ids()), logits(patched, ids()))
    torch.compiler.reset()


def test_a_hooked_linear_is_called() -> None:
    patched, seen = quantised(), []
    before = logits(patched, ids())
    patched.model.layers[0].self_attn.v_proj.register_forward_hook(lambda *_: seen.append(1))
    assert torch.equal(logits(patched, ids()), before)
    assert seen == [1]


def test_what_is_saved_is_what_was_there(tmp_path: Path) -> None:
    patched = quantised("fp8")
    patched.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    for name, tensor in patched.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)
    torch.save(patched.state_dict(), tmp_path / "state.pt")
    stored = torch.load(tmp_path / "state.pt")
    assert all(torch.equal(stored[name], tensor) for name, tensor in patched.state_dict().items())
