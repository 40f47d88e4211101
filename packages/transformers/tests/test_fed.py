"""Rows that are quantised once: which ops run, and the same results as with one linear after another."""

import copy
from typing import Any

import pytest
import torch
from quantised import WIDE, as_fp8, calls_of, dequantised
from samples import first_of, generated, ids, logits, model
from torch import Tensor

import opmux
import opmux.nn
import opmux_transformers
from opmux.errors import UnknownBackend


def test_norms_feed_attention_and_mlp() -> None:
    plain = model("llama", **WIDE)
    patched = as_fp8(plain)
    opmux_transformers.patch(patched)
    assert calls_of(patched, lambda of: logits(of, ids())) == {
        "rms_norm_quantize": 2, "add_rms_norm_quantize": 2, "quantize": 2 * 2, "scaled_linear": 2 * 7, "silu_mul": 2,
    }  # fmt: skip
    found = logits(patched, ids())
    expected = logits(dequantised(plain, activations="block", weights="block"), ids())
    assert (found - expected).norm() < 0.02 * expected.norm()


@pytest.mark.parametrize("codes", ["fp8", "int8"])
def test_packed_gates_are_quantised_as_they_are_computed(codes: str) -> None:
    plain = model("phi3")
    patched = copy.deepcopy(plain)
    opmux_transformers.patch(patched, quantize=codes)
    assert calls_of(patched, lambda of: logits(of, ids())) == {
        "rms_norm_quantize": 2, "add_rms_norm_quantize": 2, "silu_and_mul_quantize": 2, "quantize": 2,
        "scaled_linear": 2 * 4,
    }  # fmt: skip
    found, expected = logits(patched, ids()), logits(dequantised(plain, codes), ids())
    assert (found - expected).norm() < 0.02 * expected.norm()


def test_a_decode_step_quantises_once_for_queries_keys_and_values() -> None:
    patched = model("qwen3")
    opmux.nn.quantize_(patched)
    opmux_transformers.patch(patched)
    tokens = generated(patched, ids())
    steps = tokens.shape[1] - ids().shape[1] - 1
    found = calls_of(patched, lambda of: generated(of, ids()))
    assert found["quantize"] == 2 * (steps + 1)  # the output of attention
    for norm in ("rms_norm_quantize", "add_rms_norm_quantize", "silu_and_mul_quantize"):
        assert found[norm] == 2 * (steps + 1)


@pytest.mark.parametrize("codes", ["fp8", "int8"])
@pytest.mark.parametrize("name", ["llama", "phi3", "gemma2", "deepseek_v3"])
def test_fed_products_are_those_of_the_norm_bit_for_bit(name: str, codes: str) -> None:
    """In float32 nothing is rounded between a norm and its codes: a hook on the norms changes nothing but the ops."""
    patched = model(name)
    opmux_transformers.patch(patched, quantize=codes)
    fed = logits(patched, ids())
    assert calls_of(patched, lambda of: logits(of, ids()))["rms_norm_quantize"] == 2
    hooks = [layer.input_layernorm.register_forward_hook(lambda *_: None) for layer in patched.model.layers]
    assert "rms_norm_quantize" not in calls_of(patched, lambda of: logits(of, ids()))
    assert torch.equal(logits(patched, ids()), fed)
    for hook in hooks:
        hook.remove()
    generated_fed = generated(patched, ids())
    for layer in patched.model.layers:
        layer.self_attn.register_forward_pre_hook(lambda *_, **__: None)
    assert torch.equal(generated(patched, ids()), generated_fed)


def test_a_forward_that_is_set_after_the_patch_is_given_the_norm() -> None:
    patched = model("llama")
    opmux_transformers.patch(patched, quantize="int8")
    first, seen = patched.model.layers[0].self_attn, []
    own = first.forward

    def forward(hidden_states: Tensor, **kwargs: Any) -> Any:
        seen.append(bool(hidden_states.isfinite().all()))
        return own(hidden_states=hidden_states, **kwargs)

    expected = logits(patched, ids())
    first.forward = forward
    assert torch.equal(logits(patched, ids()), expected)
    assert seen == [True]


def test_what_watches_a_linear_gets_every_call() -> None:
    patched = model("llama")
    opmux.nn.quantize_(patched)
    opmux_transformers.patch(patched)
    expected, seen = logits(patched, ids()), []
    layer = patched.model.layers[0]
    layer.mlp.up_proj.register_forward_hook(lambda module, inputs, result: seen.append(inputs[0].dtype))
    torch.testing.assert_close(logits(patched, ids()), expected, rtol=1e-3, atol=1e-3)
    assert seen == [torch.float32]
    assert calls_of(patched, lambda of: logits(of, ids()))["add_rms_norm_quantize"] == 1
    with torch.enable_grad():
        patched(ids()).logits.sum().backward()
    assert patched.model.embed_tokens.weight.grad is not None


def test_a_backend_that_the_linears_ask_for_is_asked_for() -> None:
    """What feeds a linear from another op would not quantise with that backend."""
    patched = model("phi3")
    opmux.nn.quantize_(patched, backend="reference")
    opmux_transformers.patch(patched)
    with opmux.trace() as traced:
        logits(patched, ids())
        patched(ids()).logits.sum().backward()
    rows = [row for row in traced.rows if "quantize" in row.op or row.op == "scaled_linear"]
    assert {row.op for row in rows} == {"quantize", "scaled_linear", "dequantize"}
    assert {row.backend for row in rows} == {"reference"}
    assert {row.op: row.calls for row in rows}["scaled_linear"] == 2 * 2 * 4
    patched.model.layers[1].mlp.down_proj.backend = "another"
    with pytest.raises(UnknownBackend, match=r"quantize: `backend` expected one of .*, got 'another'"):
        logits(patched, ids())
    with pytest.raises(UnknownBackend, match="got 'another'"):
        patched(ids())


@pytest.mark.parametrize("way", first_of(["quantize_", "patch"]))
def test_in_a_compiled_model_norms_feed_their_linears_too(way: str) -> None:
    patched = model("qwen3")
    if way == "quantize_":
        opmux.nn.quantize_(patched)
    opmux_transformers.patch(patched, **({"quantize": "fp8"} if way == "patch" else {}))
    eager = logits(patched, ids())
    expected = calls_of(patched, lambda of: logits(of, ids()))
    assert (expected["rms_norm_quantize"], expected["add_rms_norm_quantize"], expected["quantize"]) == (2, 2, 2)
    torch.compiler.reset()
    compiled = torch.compile(patched, backend="aot_eager", fullgraph=True)
    assert torch.equal(logits(compiled, ids()), eager)
    assert calls_of(compiled, lambda of: logits(of, ids())) == expected
    hook = patched.model.layers[0].self_attn.k_proj.register_forward_hook(lambda *_: None)
    torch.compiler.reset()
    found = calls_of(compiled, lambda of: logits(of, ids()))
    assert (found["rms_norm_quantize"], found["quantize"]) == (1, 2 + 3)
    hook.remove()
    torch.compiler.reset()


@pytest.mark.long
def test_codes_outlast_a_break_of_the_graph() -> None:
    patched = model("llama")
    opmux_transformers.patch(patched, quantize="int8")
    expected = logits(patched, ids())
    patched.model.layers[0].self_attn.o_proj.register_forward_pre_hook(lambda *_: torch._dynamo.graph_break())
    torch.compiler.reset()
    compiled = torch.compile(patched, backend="aot_eager")
    assert torch.equal(logits(compiled, ids()), expected)
    assert calls_of(compiled, lambda of: logits(of, ids()))["rms_norm_quantize"] == 2
    torch.compiler.reset()
