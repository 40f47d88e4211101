"""Rope's module: every rule, configurations, tables that stay what they are."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from nn.blocks import inputs

import opmux
from opmux import nn
from opmux.errors import InvalidArgument

LLAMA3 = {
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
}  # fmt: skip
PAIRS = {"short_factor": [1.0, 1.5, 2.0, 2.5], "long_factor": [2.0, 3.0, 4.0, 5.0]}
RULES: dict[str, dict[str, Any]] = {
    "default": {"partial_rotary_factor": 0.5},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0, "max_position_embeddings": 16, "seq_len": 40},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16, "truncate": False},
    "llama3": LLAMA3,
    "longrope": {**PAIRS, "max_position_embeddings": 64, "original_max_position_embeddings": 16, "seq_len": 40},
}


def tables(rope_type: str, max_positions: int = 64, **parameters: Any) -> tuple[torch.Tensor, torch.Tensor]:
    rule = getattr(opmux.rope, {"dynamic": "dynamic_ntk"}.get(rope_type, rope_type))
    inv_freq, factor = rule(rope_theta=1000.0, head_dim=8, **parameters)
    return opmux.rope.tables(inv_freq, max_positions, factor)


def assert_tables(rotary: nn.RotaryEmbedding, expected: tuple[torch.Tensor, torch.Tensor]) -> None:
    torch.testing.assert_close((rotary.cos, rotary.sin), expected, rtol=0, atol=0)


@pytest.mark.parametrize("rope_type", RULES)
@pytest.mark.parametrize("interleaved", [False, True])
def test_every_rule(rope_type: str, interleaved: bool) -> None:
    rotary = nn.RotaryEmbedding(8, 64, 1000.0, rope_type, interleaved=interleaved, **RULES[rope_type])
    expected = tables(rope_type, **RULES[rope_type])
    assert_tables(rotary, expected)
    q, k, positions = inputs(2, 5, 4, 8), inputs(2, 5, 2, 8), torch.randint(64, (2, 5))
    for where in (None, positions):
        given = rotary(q, k, where)
        torch.testing.assert_close(given, opmux.apply_rope(q, k, *expected, where, interleaved=interleaved))
    assert not rotary.state_dict()
    assert f"rope_type={rope_type!r}, max_positions=64" in repr(rotary)


def configurations() -> list[Any]:
    """One description in the forms that configurations have had."""
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "max_position_embeddings": 64}
    scaling = {"rope_type": "llama3", **LLAMA3}
    return [
        pytest.param({**sizes, "rope_theta": 1000.0, "rope_scaling": scaling}, {}, id="rope_scaling"),
        pytest.param({**sizes, "rope_theta": 1000.0, "rope_scaling": {"type": "llama3", **LLAMA3}}, {}, id="type"),
        pytest.param({**sizes, "rope_parameters": {"rope_theta": 1000.0, **scaling}}, {}, id="rope_parameters"),
        pytest.param(SimpleNamespace(head_dim=8, max_position_embeddings=64, rope_theta=1000.0, rope_scaling=scaling),
                     {}, id="object"),
        pytest.param({**sizes, "rope_parameters": {"full": {"rope_theta": 1000.0, **scaling},
                                                   "sliding": {"rope_theta": 10.0, "rope_type": "default"}}},
                     {"layer_type": "full"}, id="for each type of layer"),
        pytest.param({**sizes, "rope_theta": 7.0, "rope_scaling": scaling}, {"rope_theta": 1000.0}, id="override"),
    ]  # fmt: skip


@pytest.mark.parametrize(("config", "more"), configurations())
def test_from_a_configuration(config: Any, more: dict[str, Any]) -> None:
    assert_tables(nn.RotaryEmbedding.from_config(config, **more), tables("llama3", **LLAMA3))


def test_configurations_of_other_rules() -> None:
    sizes = {"head_dim": 8, "rope_theta": 1000.0, "max_position_embeddings": 64}
    assert_tables(nn.RotaryEmbedding.from_config(sizes), tables("default"))
    assert_tables(nn.RotaryEmbedding.from_config({**sizes, "rope_scaling": None}, 32), tables("default", 32))
    assert_tables(
        nn.RotaryEmbedding.from_config({**sizes, "partial_rotary_factor": 0.5}),
        tables("default", partial_rotary_factor=0.5),
    )
    # Phi-3: the original length beside the scaling, whose rule had another name once.
    phi = {**sizes, "original_max_position_embeddings": 16, "rope_scaling": {"type": "su", **PAIRS}}
    lengths = {"max_position_embeddings": 64, "original_max_position_embeddings": 16}
    assert_tables(nn.RotaryEmbedding.from_config(phi), tables("longrope", **PAIRS, **lengths))
    assert_tables(nn.RotaryEmbedding.from_config(phi, seq_len=17), tables("longrope", **PAIRS, **lengths, seq_len=17))
    neox = {"hidden_size": 32, "num_attention_heads": 4, "rotary_pct": 0.5, "rotary_emb_base": 1000.0}
    assert_tables(nn.RotaryEmbedding.from_config(neox, 64), tables("default", partial_rotary_factor=0.5))
    # Gemma 3, at first: the scaling is that of the full layers, the others have a base of their own.
    gemma = {**sizes, "rope_theta": 7.0, "rope_local_base_freq": 1000.0}
    gemma["rope_scaling"] = {"rope_type": "linear", "factor": 8.0}
    assert_tables(nn.RotaryEmbedding.from_config(gemma, layer_type="sliding_attention"), tables("default"))
    assert_tables(
        nn.RotaryEmbedding.from_config(gemma, layer_type="full_attention", rope_theta=1000.0),
        tables("linear", factor=8.0),
    )
    with pytest.raises(InvalidArgument, match="`layer_type` expected one of full_attention, sliding_attention"):
        nn.RotaryEmbedding.from_config(gemma)
    theta_free = {"head_dim": 8, "max_position_embeddings": 64}
    assert nn.RotaryEmbedding.from_config(theta_free).parameters_of_rule["rope_theta"] == 10_000.0


def test_resize() -> None:
    rotary = nn.RotaryEmbedding(8, 16, 1000.0, "dynamic", factor=2.0, max_position_embeddings=16)
    rotary.resize(40, seq_len=40)
    assert_tables(rotary, tables("dynamic", 40, factor=2.0, max_position_embeddings=16, seq_len=40))
    with pytest.raises(InvalidArgument, match="`max_positions` expected a whole number, 1 or more, got 0"):
        rotary.resize(0, seq_len=80)
    assert (rotary.max_positions, rotary.parameters_of_rule["seq_len"]) == (40, 40)
    with pytest.raises(InvalidArgument, match=r"RotaryEmbedding: `parameters` expected those .* got seq_len=32"):
        nn.RotaryEmbedding(8, 16).resize(32, seq_len=32)


CHANGES = {
    "to bfloat16": lambda m: m.to(torch.bfloat16),
    "half": lambda m: m.half(),
    "double": lambda m: m.double(),
    "to meta and back": lambda m: m.to("meta").to_empty(device="cpu"),
    "to_empty": lambda m: m.to_empty(device="cpu"),
    "deepcopy": copy.deepcopy,
    "twice": lambda m: m.bfloat16().float(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_tables_stay_float32_and_exact(change: str) -> None:
    model = torch.nn.Sequential(nn.RotaryEmbedding(8, 64, 1000.0), nn.Linear(4, 4))
    changed = CHANGES[change](model)
    assert_tables(changed[0], tables("default"))


def test_made_on_the_meta_device() -> None:
    with torch.device("meta"):
        rotary = nn.RotaryEmbedding(8, 64, 1000.0)
    assert rotary.cos.is_meta
    assert rotary.to(torch.bfloat16).cos.is_meta
    assert_tables(rotary.to_empty(device="cpu"), tables("default"))
    assert nn.RotaryEmbedding(8, 64, device="meta").sin.is_meta


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: nn.RotaryEmbedding(8, 64, rope_type="alibi"),
            "RotaryEmbedding: `rope_type` expected one of default, linear, dynamic, yarn, llama3, longrope, got 'alibi'"
            "; for any other rule, make the tables yourself and call opmux.apply_rope",
        ),
        (
            lambda: nn.RotaryEmbedding(8, 64, rope_type="linear", beta_fast=2.0),
            "RotaryEmbedding: `parameters` expected those of rope type 'linear' (rope_theta, head_dim, factor, "
            "partial_rotary_factor), got beta_fast=2.0; leave it out, or check the rope type",
        ),
        (
            lambda: nn.RotaryEmbedding(8, 6.5),  # type: ignore[arg-type]
            "RotaryEmbedding: `max_positions` expected a whole number, 1 or more, got 6.5; check the model's sizes",
        ),
        (
            lambda: nn.RotaryEmbedding(8, 64, rope_type="linear"),
            "RotaryEmbedding: `factor` expected a value for rope type 'linear', got none; "
            "pass it, or check the rope parameters",
        ),
        (
            lambda: nn.RotaryEmbedding.from_config({"max_position_embeddings": 64}),
            "RotaryEmbedding: `config` expected head_dim, or hidden_size and num_attention_heads, which divides it, "
            "got hidden_size None and num_attention_heads None; add one, or pass the arguments one by one",
        ),
        (
            lambda: nn.RotaryEmbedding.from_config({"hidden_size": 65, "num_attention_heads": 4}),
            "RotaryEmbedding: `config` expected head_dim, or hidden_size and num_attention_heads, which divides it, "
            "got hidden_size 65 and num_attention_heads 4; add one, or pass the arguments one by one",
        ),
        (
            lambda: nn.RotaryEmbedding(8, 64)(torch.zeros(1, 2, 4, 16), torch.zeros(1, 2, 4, 16)),
            "RotaryEmbedding: `q` expected heads of head_dim = 8, got shape (1, 2, 4, 16); "
            "make the module for this size; partial_rotary_factor rotates a part of a head",
        ),
        (
            lambda: nn.RotaryEmbedding.from_config({"head_dim": 8}),
            "RotaryEmbedding: `max_positions` expected a number, or max_position_embeddings in the configuration, "
            "got neither; pass the longest sequence, in positions",
        ),
        (
            lambda: nn.RotaryEmbedding.from_config({"head_dim": 8, "rope_parameters": {"full": {}, "sliding": {}}}),
            "RotaryEmbedding: `layer_type` expected one of full, sliding, got None; "
            "the configuration has rope parameters for each type of layer: name one",
        ),
    ],
    ids=[
        "rule",
        "unknown parameter",
        "half a position",
        "missing parameter",
        "no head_dim",
        "a rest",
        "part of a head",
        "no length",
        "no type of layer",
    ],
)
def test_errors(make: Any, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        make()
    assert str(caught.value) == message
