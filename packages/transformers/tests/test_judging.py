"""What decides whether a module is replaced: training, dtypes, buffers and numbers, large values, whose class it is."""

import copy
import types
from typing import Any

import pytest
import torch
import transformers
from samples import CLOSE, GREEDY, SIZES, ids, logits, model, pair
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize, prune

import opmux_transformers
from opmux_transformers import check
from opmux_transformers.configs import small_config

TRAINING = "it computes something else in training"
LLAMA = transformers.models.llama.modeling_llama


def reasons(report, kind: str) -> dict[str, str]:
    return {row.module: row.reason for row in report.left(kind)}


def agree(patched, plain) -> None:
    torch.testing.assert_close(logits(patched, ids()), logits(plain, ids()), **CLOSE)


def train_alike(patched, plain) -> None:
    """From the same random numbers on both take the same step, and leave the generator at the same place."""
    seen = []
    for of in (plain, patched):
        of.train()
        torch.manual_seed(7)
        loss = of(ids(), labels=ids()).loss
        loss.backward()
        seen.append((loss.detach(), torch.get_rng_state(), [p.grad for p in of.parameters() if p.grad is not None]))
        of.eval()
    (theirs, their_state, their_grads), (own, own_state, own_grads) = seen
    torch.testing.assert_close(own, theirs, **CLOSE)
    assert torch.equal(own_state, their_state)
    for mine, other in zip(own_grads, their_grads, strict=True):
        torch.testing.assert_close(mine, other, **CLOSE)


# In training -----------------------------------------------------------------------------------------------------


class DroppingMLP(LLAMA.LlamaMLP):
    def forward(self, x):
        return self.down_proj(self.drop(self.act_fn(self.gate_proj(x)) * self.up_proj(x)))


class NoisyNorm(LLAMA.LlamaRMSNorm):
    def forward(self, hidden_states):
        return functional.dropout(super().forward(hidden_states), 0.5, self.training)


class SkippingNorm(LLAMA.LlamaRMSNorm):
    def forward(self, hidden_states):
        if self.training and torch.rand(()) < 1e-6:  # hardly ever: only the numbers drawn show it
            return hidden_states
        return super().forward(hidden_states)


class SteadyNorm(LLAMA.LlamaRMSNorm):
    def forward(self, hidden_states):
        return super().forward(hidden_states) * (1.1 if self.training else 1.0)


class DroppingLayer(LLAMA.LlamaDecoderLayer):
    rate = 0.5

    def forward(self, hidden_states, **kwargs):
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
        hidden_states = hidden_states + functional.dropout(attended, self.rate, self.training)
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))


def with_dropping_mlp(of, rate: float) -> None:
    for layer in of.model.layers:
        layer.mlp.__class__, layer.mlp.drop = DroppingMLP, nn.Dropout(rate)


def test_a_gate_with_dropout_is_left_alone() -> None:
    plain = model()
    with_dropping_mlp(plain, 0.01)
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    assert reasons(report, "gate") == {"model.layers.0.mlp": TRAINING, "model.layers.1.mlp": TRAINING}
    assert report.replaced("residual") == 2  # the layer calls its MLP, whatever that drops
    train_alike(patched, plain)


def test_a_gate_whose_dropout_drops_nothing_is_replaced_until_it_does() -> None:
    plain = model()
    with_dropping_mlp(plain, 0.0)
    patched = copy.deepcopy(plain)
    assert opmux_transformers.patch(patched).replaced("gate") == 2
    train_alike(patched, plain)
    for of in (plain, patched):
        of.model.layers[0].mlp.drop.p = 0.5
    train_alike(patched, plain)


@pytest.mark.parametrize("cls", [NoisyNorm, SkippingNorm, SteadyNorm], ids=lambda cls: cls.__name__)
def test_a_norm_that_does_something_else_in_training_is_left_alone(cls) -> None:
    plain = model()
    plain.model.norm.__class__ = cls
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    assert reasons(report, "norm") == {"model.norm": TRAINING}
    agree(patched, plain)
    train_alike(patched, plain)


@pytest.mark.parametrize(("rate", "left"), [(0.5, 2), (0.0, 0)])
def test_a_layer_that_drops_before_its_sum_is_left_alone(rate: float, left: int, monkeypatch) -> None:
    monkeypatch.setattr(DroppingLayer, "rate", rate)
    plain = model()
    for layer in plain.model.layers:
        layer.__class__ = DroppingLayer
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    assert list(reasons(report, "residual").values()) == [TRAINING] * left
    agree(patched, plain)
    train_alike(patched, plain)


def test_dropout_of_the_modules_of_a_layer_and_of_its_attention_hinders_nothing() -> None:
    config = small_config("phi3")
    config.resid_pdrop, config.attention_dropout = 0.3, 0.2
    patched = check.build(config, torch.float32)
    assert opmux_transformers.patch(patched).counts()["residual"] == {"replaced": 2, "left": 0}


@pytest.mark.parametrize(("rate", "replaced"), [(0.1, 0), (0.0, 2)])
def test_the_dropout_of_seed_oss(rate: float, replaced: int) -> None:
    plain, patched = pair("seed_oss", residual_dropout=rate, attention_dropout=0.0)
    report = opmux_transformers.patch(patched)
    assert report.replaced("gate") == replaced
    assert set(reasons(report, "gate").values()) == ({TRAINING} if rate else set())
    train_alike(patched, plain)
    for of in (plain, patched):
        for layer in of.model.layers:
            layer.mlp.residual_dropout = 0.4
    train_alike(patched, plain)


def t5(rate: float):
    config = transformers.T5Config(
        vocab_size=128, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu",
        dropout_rate=rate, pad_token_id=0, decoder_start_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config).eval()


@pytest.mark.parametrize(("rate", "replaced"), [(0.3, 0), (0.0, 4)])
def test_the_dropout_of_t5(rate: float, replaced: int) -> None:
    patched = t5(rate)
    report = opmux_transformers.patch(patched)
    assert report.replaced("gate") == replaced
    inner = patched.encoder.block[0].layer[1].DenseReluDense.train()
    x = torch.randn(2, 3, 64)
    assert torch.equal(inner(x), inner(x)) == (rate == 0.0)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
def test_a_model_that_checkpoints_already_is_judged_without() -> None:
    plain, patched = pair()
    patched.gradient_checkpointing_enable()
    patched.train()
    assert opmux_transformers.patch(patched).left() == []
    assert all(layer.gradient_checkpointing and layer.training for layer in patched.model.layers)
    train_alike(patched, plain)


def test_what_training_writes_into_buffers_stays_out() -> None:
    class Counting(LLAMA.LlamaRMSNorm):
        def forward(self, hidden_states):
            if self.training:
                self.calls += 1
                self.mean.mul_(0.9)
            return super().forward(hidden_states)

    patched = model().train()
    patched.model.norm.__class__ = Counting
    patched.model.norm.register_buffer("calls", torch.tensor(0))
    patched.model.norm.register_buffer("mean", torch.ones(3))
    opmux_transformers.patch(patched)
    assert patched.model.norm.calls == 0
    assert torch.equal(patched.model.norm.mean, torch.ones(3))


# Linears that are not torch's own --------------------------------------------------------------------------------


class OwnLinear(nn.Linear):
    """A subclass that computes the same."""


class Int8(nn.Module):
    """A quantised linear without any parameter."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach()
        self.register_buffer("scale", weight.abs().amax(1, keepdim=True) / 127)
        self.register_buffer("integers", (weight / self.scale).round().to(torch.int8))

    def forward(self, x):
        return functional.linear(x, self.integers.to(x.dtype) * self.scale.to(x.dtype))


class Adapted(nn.Module):
    """A linear with a low-rank term and dropout before it, as PEFT wraps them."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.in_features, self.out_features = base, base.in_features, base.out_features
        self.drop = nn.Dropout(0.1)
        self.down = nn.Linear(base.in_features, 4, bias=False, dtype=base.weight.dtype)
        self.up = nn.Linear(4, base.out_features, bias=False, dtype=base.weight.dtype)

    def forward(self, x):
        return self.base(x) + self.up(self.down(self.drop(x)))


def own(linear: nn.Linear) -> nn.Module:
    linear.__class__ = OwnLinear
    return linear


def exchange_linears(of, make) -> None:
    for path, child in list(of.model.named_modules()):
        if type(child) is nn.Linear:
            parent, _, name = path.rpartition(".")
            setattr(of.model.get_submodule(parent), name, make(child))


class LouderMLP(LLAMA.LlamaMLP):
    def forward(self, x):
        return super().forward(x) * 1.05


@pytest.mark.parametrize("make", [own, Int8, Adapted], ids=["subclassed", "quantised", "adapted"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("activation", "cls", "replaced"),
    [("silu", None, 2), ("gelu", None, 2), ("quick_gelu", None, 0), ("silu", LouderMLP, 0)],
)
def test_gates_of_other_linears_are_judged_in_float32(make, dtype, activation, cls, replaced) -> None:
    plain = model(dtype=dtype, hidden_act=activation)
    if cls is not None:
        for layer in plain.model.layers:
            layer.mlp.__class__ = cls
    exchange_linears(plain, make)
    patched = copy.deepcopy(plain.eval())
    report = opmux_transformers.patch(patched)
    assert report.replaced("gate") == replaced
    assert all("differs from the replacement" in reason for reason in reasons(report, "gate").values())
    assert report.counts()["attention"] == {"replaced": 2, "left": 0}  # one without parameters, too
    assert report.replaced("rope") == report.replaced("residual") == report.replaced("cache") * 2 == 2
    if dtype == torch.float32:
        agree(patched, plain)


# Buffers and numbers ---------------------------------------------------------------------------------------------


class GainNorm(LLAMA.LlamaRMSNorm):
    def forward(self, hidden_states):
        return super().forward(hidden_states) * self.gain


class GainMLP(LLAMA.LlamaMLP):
    def forward(self, x):
        return super().forward(x) * self.gain


class GainLayer(LLAMA.LlamaDecoderLayer):
    def forward(self, hidden_states, **kwargs):
        return super().forward(hidden_states, **kwargs) * self.gain


GAINS = [
    ("norm", GainNorm, "post_attention_layernorm"),
    ("gate", GainMLP, "mlp"),
    ("residual", GainLayer, ""),
]


def with_gain(of, cls, path: str, gains: list[Any]) -> None:
    for layer, gain in zip(of.model.layers, gains, strict=True):
        changed = layer.get_submodule(path)
        changed.__class__ = cls
        changed.__dict__.pop("gain", None)
        if isinstance(gain, torch.Tensor):
            changed.register_buffer("gain", gain)
        else:
            changed.gain = gain


@pytest.mark.parametrize(("kind", "cls", "path"), GAINS, ids=[kind for kind, _, _ in GAINS])
@pytest.mark.parametrize("shape", [(), (64,)])
def test_a_module_with_a_buffer_that_has_an_effect_is_left_alone(kind: str, cls, path: str, shape) -> None:
    plain = model()
    with_gain(plain, cls, path, [torch.ones(shape), 2 * torch.ones(shape)])
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    assert report.counts()[kind]["left"] == 2
    assert "failed" not in str(reasons(report, kind))
    agree(patched, plain)


def test_a_buffer_without_an_effect_hinders_nothing() -> None:
    patched = model()
    for layer in patched.model.layers:
        layer.input_layernorm.register_buffer("seen", torch.tensor(1.0))
        layer.mlp.register_buffer("seen", torch.tensor(1.0))
        layer.register_buffer("seen", torch.tensor(1.0))
    assert opmux_transformers.patch(patched).left() == []


@pytest.mark.parametrize(("kind", "cls", "path"), GAINS, ids=[kind for kind, _, _ in GAINS])
def test_a_number_that_is_set_after_the_patch_has_its_effect(kind: str, cls, path: str) -> None:
    plain = model()
    with_gain(plain, cls, path, [1.0, 1.0])
    patched = copy.deepcopy(plain)
    assert opmux_transformers.patch(patched).replaced(kind) >= 2
    agree(patched, plain)
    for of in (plain, patched):
        of.model.layers[0].get_submodule(path).gain = 3.0
    agree(patched, plain)


# Large values ----------------------------------------------------------------------------------------------------


class ClampingNorm(LLAMA.LlamaRMSNorm):
    def forward(self, hidden_states):
        return super().forward(hidden_states).clamp(-30, 30)


class ClampedNorm(LLAMA.LlamaRMSNorm):
    def forward(self, hidden_states):
        return super().forward(hidden_states.clamp(-500, 500))


class ClampingMLP(LLAMA.LlamaMLP):
    def forward(self, x):
        gate, up = self.act_fn(self.gate_proj(x).clamp(max=20.0)), self.up_proj(x).clamp(-20, 20)
        return self.down_proj(gate * up)


@pytest.mark.parametrize(
    ("path", "cls"), [("norm", ClampingNorm), ("norm", ClampedNorm), ("layers.0.mlp", ClampingMLP)]
)
def test_a_module_that_clamps_large_values_is_left_alone(path: str, cls) -> None:
    patched = model()
    patched.model.get_submodule(path).__class__ = cls
    (left,) = (row for row in opmux_transformers.patch(patched).left() if row.kind in ("norm", "gate"))
    assert left.module == f"model.{path}"
    assert left.reason.startswith("on random input it differs from the replacement by ")


# Classes and weights of others -----------------------------------------------------------------------------------

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


class Half(nn.Module):
    def forward(self, weight):
        return weight * 0.5


@pytest.mark.parametrize(
    "change",
    [
        lambda norm: parametrize.register_parametrization(norm, "weight", Half()),
        lambda norm: prune.custom_from_mask(norm, "weight", torch.arange(64) % 2),
    ],
    ids=["parametrised", "pruned"],
)
def test_a_norm_whose_weight_is_computed_is_named(change) -> None:
    plain, patched = pair()
    for of in (plain, patched):
        change(of.model.layers[0].input_layernorm)
    report = opmux_transformers.patch(patched)
    assert reasons(report, "norm") == {
        "model.layers.0.input_layernorm": "its weight is computed in every call, or is no parameter"
    }
    assert report.replaced("norm") == 4
    agree(patched, plain)


# Reasons ---------------------------------------------------------------------------------------------------------


def test_an_encoder_has_no_rows_of_gates_and_residual_sums() -> None:
    config = transformers.BertConfig(**{**SIZES, "num_key_value_heads": 4}, type_vocab_size=2)
    report = opmux_transformers.patch(transformers.BertModel(config).eval())
    assert {row.kind for row in report.left()} == {"norm", "attention", "cache"}


def test_a_self_attention_of_its_own_making_is_no_gate() -> None:
    config = transformers.RoFormerConfig(**{**SIZES, "num_key_value_heads": 4}, type_vocab_size=2)
    report = opmux_transformers.patch(transformers.RoFormerModel(config).eval())
    assert "gate" not in report.counts()


def test_a_layer_whose_mask_is_no_window() -> None:
    patched = model("qwen3")
    patched.config.layer_types = ["full_attention", "chunked_attention"]
    left = reasons(opmux_transformers.patch(patched), "attention")
    assert (
        left["model.layers.1.self_attn"]
        == "its layer is of the kind 'chunked_attention': only full and sliding attention are known"
    )


def test_the_reasons_for_t5() -> None:
    report = opmux_transformers.patch(t5(0.0))
    assert not [row.reason for row in report.left() if "Error" in row.reason]
    attention = reasons(report, "attention")
    assert attention["decoder.block.0.layer.0.SelfAttention"] == (
        "its forward takes no `attention_mask`: its mask is not the one that opmux makes"
    )
    assert set(reasons(report, "residual").values()) == {
        "its attention calls no function (q, k, cos, sin), and only layers whose attention does are looked at"
    }


def test_an_attention_that_needs_more_than_a_check_can_give() -> None:
    class Sharing(LLAMA.LlamaAttention):
        def forward(self, hidden_states, position_embeddings, attention_mask, shared_states, **kwargs):
            return super().forward(hidden_states, position_embeddings, attention_mask, **kwargs)

    patched = model()
    patched.model.layers[1].self_attn.__class__ = Sharing
    left = reasons(opmux_transformers.patch(patched), "attention")
    assert left["model.layers.1.self_attn"] == "its forward needs `shared_states`, which a check cannot give"


def test_an_attention_that_scales_by_positions_is_replaced() -> None:
    changed = {**small_config("ministral3").rope_parameters, "original_max_position_embeddings": 8}
    config = small_config("ministral3")
    config.rope_parameters = {**changed, "llama_4_scaling_beta": 0.5}
    plain = check.build(config, torch.float32)
    patched = copy.deepcopy(plain)
    assert opmux_transformers.patch(patched).left() == []
    agree(patched, plain)
    mask = torch.ones_like(ids())
    mask[0, :5] = 0
    expected = plain.generate(ids(), attention_mask=mask, **GREEDY)
    assert torch.equal(patched.generate(ids(), attention_mask=mask, **GREEDY), expected)
