"""Mixtures of experts: taken where the numbers agree, in training and in generate, and given back bit for bit."""

import copy
from typing import Any

import pytest
import torch
import transformers
from samples import (
    CLOSE,
    GREEDY,
    agree,
    deep_looks,
    first_of,
    generated,
    ids,
    logits,
    ops_of,
    pair,
    reasons,
    train_alike,
)
from torch import Tensor, nn

import opmux
import opmux_transformers
from opmux_transformers import check, experts, model_check
from opmux_transformers.configs import small_config

PRODUCTS = "grouped_linear, masked_grouped_linear, "
SILU, OWN = PRODUCTS + "silu_and_mul", PRODUCTS + "its own gate"
FAMILIES = {
    "mixtral": SILU, "qwen2_moe": SILU, "qwen3_moe": SILU, "deepseek_v3": SILU, "gpt_oss": OWN,
    "deepseek_v4": OWN, "nemotron_h": OWN, "olmoe": SILU,
}  # fmt: skip
"""Transposed weights, weights with biases, clamped gates and experts without a gate are among them."""

if hasattr(transformers.models.aria.modeling_aria.AriaExperts, "_apply_gate"):  # older versions have modules of groups
    FAMILIES["aria_text"] = SILU

MIXTRAL = transformers.models.mixtral.modeling_mixtral
FAR = "on random input it differs from the replacement by"


def found(report: Any) -> dict[str, str]:
    """The ops of the experts that were replaced, by their modules."""
    return {row.module: row.op for row in report.rows if row.kind == "experts" and row.status == "replaced"}


def inner(of: Any) -> list[Any]:
    """The experts modules of a model."""
    return [module for module in of.modules() if type(module).__name__.endswith("Experts")]


@pytest.mark.filterwarnings("ignore")  # what transformers says of configurations this small
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_computes_the_same_and_comes_back_bit_for_bit(name: str) -> None:
    plain, patched = pair(name)
    before = deep_looks(patched)
    report = opmux_transformers.patch(patched)
    assert len(found(report)) == len(inner(plain)) >= 1
    assert {*found(report).values()} == {FAMILIES[name]}
    assert reasons(report, "experts") == {}
    assert {"masked_grouped_linear"} <= ops_of(patched)
    agree(patched, plain)
    long = ids(seq=40)
    torch.testing.assert_close(logits(patched, long), logits(plain, long), **CLOSE)
    opmux_transformers.unpatch(patched)
    assert deep_looks(patched) == before
    assert torch.equal(logits(patched, long), logits(plain, long))


@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v3", "gpt_oss"])
def test_training_and_generate_agree(name: str) -> None:
    plain, patched = pair(name)
    opmux_transformers.patch(patched)
    with opmux.trace() as trace:
        train_alike(patched, plain)
    assert {"grouped_linear", "grouped_linear_backward"} <= {row.op for row in trace.rows}
    with opmux.trace() as trace:
        assert torch.equal(generated(patched, ids()), generated(plain, ids()))
    calls = {row.op: row.calls for row in trace.rows}
    # one prompt of 24 tokens, which are few; then 2 tokens at a time, which name no more experts than there are
    products = 2 * len(inner(plain))
    assert calls["masked_grouped_linear"] == products
    assert calls["grouped_linear"] == products * (GREEDY["max_new_tokens"] - 1)


@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v3"])
def test_models_check_covers_mixtures(name: str) -> None:
    result = model_check.run(name, "cpu")
    assert result["report"]["counts"]["experts"] == {"replaced": 1 if name == "deepseek_v3" else 2, "left": 0}
    float32 = [c for c in result["comparisons"] if c["dtype"] == "float32"]
    assert len(float32) == 3
    assert all(c["passed"] for c in float32)


@pytest.mark.parametrize("name", first_of(["mixtral", "gpt_oss"]))
def test_under_torch_compile_it_is_one_graph(name: str) -> None:
    plain, patched = pair(name)
    opmux_transformers.patch(patched)
    compiled = torch.compile(patched, fullgraph=True, backend="aot_eager")
    for seq in (12, 40):
        torch.testing.assert_close(logits(compiled, ids(seq)), logits(plain, ids(seq)), **CLOSE)


def test_under_autocast_it_is_no_further_from_the_truth() -> None:
    plain, patched = pair("mixtral")
    opmux_transformers.patch(patched)
    exact = logits(plain, ids())
    with torch.autocast("cpu", torch.bfloat16):
        theirs, own = (float((logits(of, ids()) - exact).norm()) for of in (plain, patched))
    assert own <= 1.5 * theirs


def test_the_option_leaves_experts_alone() -> None:
    plain, patched = pair("mixtral")
    report = opmux_transformers.patch(patched, experts=False)
    assert set(reasons(report, "experts").values()) == {"not asked for: experts=False"}
    assert "grouped_linear" not in ops_of(patched) | {row.op for row in report.rows}
    assert patched.config._experts_implementation == plain.config._experts_implementation


def changed(cls: type, **own: Any) -> type:
    """A subclass of an experts class."""
    return type(f"My{cls.__name__}", (cls,), {"__module__": __name__, **own})


def louder(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    return 1.01 * MIXTRAL.MixtralExperts.forward(self, hidden_states, top_k_index, top_k_weights)


def its_own(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    return 1.01 * experts.eager_forward(MIXTRAL.MixtralExperts)(self, hidden_states, top_k_index, top_k_weights)


def in_training(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    weights = top_k_weights * 2 if self.training and self.config._experts_implementation == "eager" else top_k_weights
    return MIXTRAL.MixtralExperts.forward(self, hidden_states, top_k_index, weights)


def counting(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    self.calls = getattr(self, "calls", 0) + 1
    return MIXTRAL.MixtralExperts.forward(self, hidden_states, top_k_index, top_k_weights)


def other_gate(self: Any, both: Tensor) -> Tensor:
    gate, up = both.chunk(2, -1)
    return torch.tanh(gate) * up


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        ({"forward": its_own}, "its forward does not ask transformers' experts registry"),
        ({"forward": in_training}, "it computes something different in training"),
        ({"forward": counting}, "it writes its own state when it is called: `calls`"),
        ({"_apply_gate": other_gate}, FAR),
    ],
    ids=["its own", "in training", "counting", "another gate"],
)
def test_changed_mathematics_are_left_with_a_reason(own: dict[str, Any], reason: str) -> None:
    plain, _ = pair("mixtral")
    inner(plain)[0].__class__ = changed(MIXTRAL.MixtralExperts, **own)
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    left = reasons(report, "experts")
    assert list(left) == ["model.layers.0.mlp.experts"]
    assert left["model.layers.0.mlp.experts"].startswith(reason)
    assert list(found(report)) == ["model.layers.1.mlp.experts"]
    agree(patched, plain)  # a mixture that is left keeps the implementation that it had


def test_a_subclass_around_the_registry_is_replaced_below() -> None:
    plain, _ = pair("mixtral")
    inner(plain)[0].__class__ = changed(MIXTRAL.MixtralExperts, forward=louder)
    patched = copy.deepcopy(plain)
    assert len(found(opmux_transformers.patch(patched))) == 2
    agree(patched, plain)


@pytest.mark.parametrize(("activation", "op"), [("gelu", "gelu_and_mul"), ("gelu_pytorch_tanh", "gelu_and_mul(tanh)")])
def test_the_gate_is_found_by_its_numbers(activation: str, op: str) -> None:
    plain, patched = pair("mixtral", hidden_act=activation)
    assert {*found(opmux_transformers.patch(patched)).values()} == {PRODUCTS + op}
    agree(patched, plain)


def test_another_activation_stays_the_modules_own() -> None:
    plain, patched = pair("mixtral", hidden_act="relu")
    assert {*found(opmux_transformers.patch(patched)).values()} == {OWN}
    agree(patched, plain)


def test_an_activation_that_is_hooked_or_exchanged_later_is_called() -> None:
    plain, patched = pair("mixtral")
    opmux_transformers.patch(patched)
    calls: list[Any] = []
    inner(patched)[0].act_fn.register_forward_hook(lambda *call: calls.append(call))
    agree(patched, plain)
    assert len(calls) == 1
    for of in (plain, patched):
        inner(of)[1].act_fn = nn.ReLU()
    agree(patched, plain)


def test_a_number_that_is_changed_later_is_noticed() -> None:
    plain, patched = pair("deepseek_v4")
    opmux_transformers.patch(patched)
    for of in (plain, patched):
        inner(of)[0].limit = 0.5
    agree(patched, plain)


def test_experts_can_be_given_back_to_transformers() -> None:
    plain, patched = pair("mixtral")
    opmux_transformers.patch(patched)
    patched.set_experts_implementation("eager")
    assert {"grouped_linear", "masked_grouped_linear"}.isdisjoint(ops_of(patched))
    agree(patched, plain)
    left = reasons(opmux_transformers.report(patched), "experts")
    assert set(left.values()) == {"it was given back to transformers' 'eager' (set_experts_implementation)"}
    opmux_transformers.unpatch(patched)
    assert patched.config._experts_implementation == "eager"  # what the user has set stays


def test_a_copy_is_patched_and_computes_with_its_own_weights() -> None:
    _, patched = pair("mixtral")
    opmux_transformers.patch(patched)
    other = copy.deepcopy(patched)
    with torch.no_grad():
        inner(other)[0].down_proj.zero_()
    assert "masked_grouped_linear" in ops_of(other)
    assert not torch.allclose(logits(other, ids()), logits(patched, ids()))


def test_a_new_model_from_a_patched_configuration_computes_as_transformers_does() -> None:
    plain, patched = pair("mixtral")
    opmux_transformers.patch(patched)
    made = type(plain)(patched.config).eval()
    made.load_state_dict(plain.state_dict())
    agree(made, plain)
    assert "masked_grouped_linear" not in ops_of(made)


def test_expert_parallelism_is_left() -> None:
    _, patched = pair("mixtral")
    first, second = inner(patched)
    first._is_expert_parallel = True
    second.num_experts = 2
    assert set(reasons(opmux_transformers.patch(patched), "experts").values()) == {
        "its experts are spread over several devices"
    }


def test_quantised_and_parametrised_weights_are_left() -> None:
    _, patched = pair("mixtral")
    first, second = inner(patched)
    first.gate_up_proj = nn.Parameter(first.gate_up_proj.detach().to(torch.float8_e4m3fn), requires_grad=False)
    vars(second)["_parameters"]["up"] = second._parameters.pop("gate_up_proj")
    assert reasons(opmux_transformers.patch(patched), "experts") == {
        "model.layers.0.mlp.experts": "quantised: it computes as before",
        "model.layers.1.mlp.experts": "its weights are not parameters of the module itself",
    }


def test_the_check_takes_few_experts_of_a_large_mixture() -> None:
    config = small_config("qwen3_moe")
    config.num_experts = config.num_local_experts = 64
    plain = check.build(config, torch.float32)
    patched = copy.deepcopy(plain)
    assert len(inner(plain)[0].down_proj) == 64
    assert len(found(opmux_transformers.patch(patched))) == 2
    agree(patched, plain)


def test_a_class_that_does_not_ask_the_registry_has_no_eager_forward() -> None:
    with pytest.raises(TypeError, match="the forward of Linear does not ask transformers' experts registry"):
        experts.eager_forward(nn.Linear)
