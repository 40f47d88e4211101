"""Models that are not what they seem: each stays correct, and the report names what was left and why."""

import copy
import types

import pytest
import torch
import transformers
from samples import CLOSE, SIZES, ids, logits, looks, model, pair
from torch import nn
from torch.nn import functional

import opmux
import opmux_transformers


def reasons(report, kind: str) -> dict[str, str]:
    return {row.module: row.reason for row in report.left(kind)}


def subclassed(module: nn.Module, forward) -> None:
    """Give a module a class that subclasses its own and computes something else."""
    module.__class__ = type(f"My{type(module).__name__}", (type(module),), {"forward": forward, "__module__": __name__})


def agrees_with(plain, patched) -> None:
    torch.testing.assert_close(logits(patched, ids()), logits(plain, ids()), **CLOSE)


def changed_norm(self, hidden_states):
    return type(self).__mro__[1].forward(self, hidden_states) * 1.001


def norm_without_a_root(self, hidden_states):
    scale = hidden_states.abs().mean(-1, keepdim=True) + self.variance_epsilon
    return self.weight * (hidden_states / scale)


def norm_of_a_larger_eps(self, hidden_states):
    scale = torch.rsqrt(hidden_states.pow(2).mean(-1, keepdim=True) + 2 * self.variance_epsilon)
    return self.weight * (hidden_states * scale)


def norm_of_squared_weight(self, hidden_states):
    return type(self).__mro__[1].forward(self, hidden_states) * self.weight


def norm_that_raises(self, hidden_states):
    raise ValueError("only in the right mood")


@pytest.mark.parametrize(
    "forward",
    [changed_norm, norm_without_a_root, norm_of_a_larger_eps, norm_of_squared_weight],
    ids=lambda f: f.__name__,
)
def test_a_norm_with_changed_maths_is_left_alone(forward) -> None:
    plain = model()
    subclassed(plain.model.layers[1].input_layernorm, forward)
    with torch.no_grad():
        plain.model.layers[1].input_layernorm.weight.fill_(1.0)  # weights of one hide a squared weight
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    left = reasons(report, "norm")
    assert list(left) == ["model.layers.1.input_layernorm"]
    assert left["model.layers.1.input_layernorm"].startswith("on random input it differs from the replacement by ")
    assert report.replaced("norm") == 4
    assert reasons(report, "residual") == {"model.layers.1": "no norm follows a residual sum inside of it"}
    agrees_with(plain, patched)


def test_a_norm_that_cannot_be_checked_is_left_alone() -> None:
    patched = model()
    subclassed(patched.model.norm, norm_that_raises)
    left = reasons(opmux_transformers.patch(patched), "norm")
    assert left == {"model.norm": "its forward raises ValueError on the input of a check"}


@pytest.mark.parametrize("factor", [1.01, -1.0])
def test_a_gate_with_changed_maths_is_left_alone(factor: float) -> None:
    plain = model()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x) * factor)

    subclassed(plain.model.layers[0].mlp, forward)
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    left = reasons(report, "gate")
    assert list(left) == ["model.layers.0.mlp"]
    assert "differs from the replacement" in left["model.layers.0.mlp"]
    assert report.replaced("gate") == 1
    agrees_with(plain, patched)


@pytest.mark.parametrize("activation", ["relu", "quick_gelu", "sigmoid"])
def test_a_gate_of_another_activation_is_left_alone(activation: str) -> None:
    plain, patched = pair(hidden_act=activation)
    report = opmux_transformers.patch(patched)
    assert len(reasons(report, "gate")) == 2
    assert report.replaced("residual") == 2
    agrees_with(plain, patched)


@pytest.mark.parametrize(
    ("activation", "op"), [("gelu", "gelu_mul"), ("gelu_pytorch_tanh", "gelu_mul(tanh)"), ("silu", "silu_mul")]
)
def test_the_activation_is_found_by_its_numbers(activation: str, op: str) -> None:
    plain, patched = pair(hidden_act=activation)
    report = opmux_transformers.patch(patched)
    assert {row.op for row in report.rows if row.kind == "gate"} == {op}
    agrees_with(plain, patched)


def test_an_attention_that_wraps_another_keeps_its_rotation() -> None:
    plain = model()

    def forward(self, hidden_states, *args, **kwargs):
        output, weights = type(self).__mro__[1].forward(self, hidden_states, *args, **kwargs)
        return output * 1.05, weights

    subclassed(plain.model.layers[1].self_attn, forward)
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    assert report.replaced("attention") == 2  # it asks for its attention by name, whoever computes that
    assert reasons(report, "rope") == {"model.layers.1.self_attn": "its forward calls no function (q, k, cos, sin)"}
    assert reasons(report, "rope tables") == {"model.rotary_emb": "not every layer that uses them was replaced"}
    agrees_with(plain, patched)


def test_an_attention_of_its_own_making_keeps_the_masks_of_all() -> None:
    class Own(nn.Module):
        def __init__(self, of) -> None:
            super().__init__()
            self.config, self.scale = of.config, of.head_dim**-0.5
            self.q_proj, self.o_proj = of.q_proj, of.o_proj

        def forward(self, hidden_states, position_embeddings=None, attention_mask=None, **_):
            q = self.q_proj(hidden_states)
            weights = (q @ q.mT * self.scale + attention_mask[:, 0]).softmax(-1)
            return self.o_proj(weights @ q * position_embeddings[0].mean()), None

    plain = model()
    plain.model.layers[1].self_attn = Own(plain.model.layers[1].self_attn)
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    stranger = "model.layers.1.self_attn"
    assert reasons(report, "attention") == {
        "model.layers.0.self_attn": f"it changes only together with {stranger}, which does not ask the registry",
        stranger: "it mixes tokens by code of its own, which does not ask transformers' registry for attention",
    }
    assert report.replaced("rope") == 1
    assert report.replaced("rope tables") == 0
    agrees_with(plain, patched)


def changed_attention():
    """LlamaAttention's forward in a class of its own, with something changed."""
    source = transformers.models.llama.modeling_llama
    module = types.ModuleType("strangers_modeling")
    module.__dict__.update({k: v for k, v in vars(source).items() if not k.startswith("__")})
    code = """
class StrangersAttention(LlamaAttention):
    def forward(self, hidden_states, position_embeddings=None, attention_mask=None, past_key_values=None, **kwargs):
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        q = self.q_proj(hidden_states).view(shape).transpose(1, 2)
        k = self.k_proj(hidden_states).view(shape).transpose(1, 2)
        v = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        cos, sin = position_embeddings
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        out, weights = attend(self, q, k, v, attention_mask, scaling=SCALING, dropout=0.0, EXTRA**kwargs)
        return self.o_proj(out.reshape(*hidden_states.shape[:-1], -1)) * FACTOR, weights
"""
    return module, code


@pytest.mark.parametrize(
    ("scaling", "extra", "factor", "reason"),
    [
        ("self.scaling", "", "1.05", ""),
        ("self.scaling * (1.5 if attention_mask is None else 1.0)", "", "1.0", "differs from the replacement"),
        (
            "self.scaling",
            "position_bias=hidden_states, ",
            "1.0",
            "it hands attention `position_bias`, which opmux.attention does not have",
        ),
        ("self.scaling", "sliding_window=5, ", "1.0", "it names the window 5, its mask would have None"),
    ],
    ids=["another-output", "another-scale", "a-bias", "a-window"],
)
def test_a_strangers_attention(scaling: str, extra: str, factor: str, reason: str) -> None:
    module, code = changed_attention()
    code = code.replace("SCALING", scaling).replace("EXTRA", extra).replace("FACTOR", factor)
    exec(compile(code, "strangers_modeling.py", "exec"), module.__dict__)
    plain = model()
    plain.model.layers[1].self_attn.__class__ = module.StrangersAttention
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    left = reasons(report, "attention")
    if reason:
        assert reason in left["model.layers.1.self_attn"]
        assert left["model.layers.0.self_attn"] == (
            "it changes only together with model.layers.1.self_attn, whose attention is left"
        )
        assert patched.config._attn_implementation == "eager"
    else:  # what it computes is its own business: attention lies inside, and is what opmux computes
        assert left == {}
    if "bias" not in extra:
        agrees_with(plain, patched)


def test_a_rotation_with_changed_maths_is_left_alone() -> None:
    module, code = changed_attention()
    code = code.replace("SCALING", "self.scaling").replace("EXTRA", "").replace("FACTOR", "1.0")

    def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
        q, k = transformers.models.llama.modeling_llama.apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim)
        return q * 1.01, k

    apply_rotary_pos_emb.__module__ = "strangers_modeling"
    module.apply_rotary_pos_emb = apply_rotary_pos_emb
    exec(compile(code, "strangers_modeling.py", "exec"), module.__dict__)
    plain = model()
    plain.model.layers[1].self_attn.__class__ = module.StrangersAttention
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    assert "differs from the replacement" in reasons(report, "rope")["model.layers.1.self_attn"]
    assert report.replaced("attention") == 2
    assert reasons(report, "rope tables") == {"model.rotary_emb": "not every layer that uses them was replaced"}
    agrees_with(plain, patched)


@pytest.mark.parametrize("how", ["inverse=True", "-3"], ids=["another-option", "another-place"])
def test_a_rotation_that_is_called_in_another_way_is_left_alone(how: str) -> None:
    module, code = changed_attention()
    code = code.replace("SCALING", "self.scaling").replace("EXTRA", "").replace("FACTOR", "1.0")
    code = code.replace("apply_rotary_pos_emb(q, k, cos, sin)", f"apply_rotary_pos_emb(q, k, cos, sin, {how})")

    def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1, inverse=False):
        sin = -sin if inverse else sin
        return transformers.models.llama.modeling_llama.apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim)

    apply_rotary_pos_emb.__module__ = "strangers_modeling"
    module.apply_rotary_pos_emb = apply_rotary_pos_emb
    exec(compile(code, "strangers_modeling.py", "exec"), module.__dict__)
    plain = model()
    plain.model.layers[1].self_attn.__class__ = module.StrangersAttention
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    assert list(reasons(report, "rope")) == ["model.layers.1.self_attn"]
    assert report.replaced("attention") == 2
    agrees_with(plain, patched)


def test_a_norm_that_is_given_more_computes_as_before() -> None:
    def forward(self, hidden_states, gate=None):
        hidden_states = type(self).__mro__[1].forward(self, hidden_states)
        return hidden_states if gate is None else hidden_states * gate

    plain = model()
    subclassed(plain.model.norm, forward)
    patched = copy.deepcopy(plain)
    assert opmux_transformers.patch(patched).replaced("norm") == 5
    x = torch.randn(2, 64)
    for given in ({"gate": x}, {"hidden_states": x}):
        args = (x,) if "gate" in given else ()
        torch.testing.assert_close(patched.model.norm(*args, **given), plain.model.norm(*args, **given), **CLOSE)
    assert len(patched.model.layers[0].mlp(x=x)) == 2


def test_a_layer_that_adds_something_else_is_left_alone() -> None:
    plain = model()

    def forward(self, hidden_states, **kwargs):
        return type(self).__mro__[1].forward(self, hidden_states, **kwargs) + 0.1 * hidden_states

    subclassed(plain.model.layers[0], forward)
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    assert reasons(report, "residual") == {"model.layers.0": "what it adds to the residual is not the output before"}
    agrees_with(plain, patched)


class Int8Linear(nn.Module):
    """A linear as quantisers make it: integers and a scale for each row."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("weight", (linear.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.bias = linear.bias

    def forward(self, x):
        return functional.linear(x, self.weight.to(x.dtype) * self.scale.to(x.dtype), self.bias)


def test_a_quantised_model() -> None:
    plain = model()
    for path, child in list(plain.model.named_modules()):
        if isinstance(child, nn.Linear):
            parent, _, name = path.rpartition(".")
            setattr(plain.model.get_submodule(parent), name, Int8Linear(child))
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    left = reasons(report, "linear")
    assert len(left) == 2 * 7
    assert set(left.values()) == {"quantised: it computes as before"}
    assert "the model is quantised: its linear layers are called as they are" in report.notes
    assert report.replaced("norm") == 5
    assert report.replaced("gate") == 2
    agrees_with(plain, patched)
    opmux_transformers.unpatch(patched)
    assert isinstance(patched.model.layers[0].mlp.gate_proj, Int8Linear)


class Int8ParameterLinear(Int8Linear):
    """The same with its integers in a parameter, in the form that its own kernel wants."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear)
        integers = self.weight
        del self.weight
        self.weight = nn.Parameter(integers.t().contiguous(), requires_grad=False)

    def forward(self, x):
        assert self.weight.dtype == torch.int8
        return functional.linear(x, self.weight.t().to(x.dtype) * self.scale.to(x.dtype), self.bias)


def test_quantised_parameters_hinder_no_attention() -> None:
    plain = model()
    for path, child in list(plain.model.named_modules()):
        if isinstance(child, nn.Linear):
            parent, _, name = path.rpartition(".")
            setattr(plain.model.get_submodule(parent), name, Int8ParameterLinear(child))
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    assert report.counts()["attention"] == {"replaced": 2, "left": 0}
    assert report.replaced("residual") == report.replaced("gate") == 2
    assert len(reasons(report, "linear")) == 2 * 7
    agrees_with(plain, patched)


def layer_that_looks_at_its_number(self, hidden_states, **kwargs):
    hidden_states = type(self).__mro__[1].forward(self, hidden_states, **kwargs)
    return hidden_states * 2 if self.layer_idx else hidden_states


def test_layers_that_look_at_their_number_are_judged_one_by_one() -> None:
    plain = model()
    changed = type(
        "Numbered",
        (type(plain.model.layers[0]),),
        {"forward": layer_that_looks_at_its_number, "__module__": __name__},
    )
    for index, layer in enumerate(plain.model.layers):
        layer.__class__, layer.layer_idx = changed, index
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    assert list(reasons(report, "residual")) == ["model.layers.1"]
    agrees_with(plain, patched)


def test_an_encoder() -> None:
    config = transformers.BertConfig(**{**SIZES, "num_key_value_heads": 4}, type_vocab_size=2)
    plain = transformers.BertModel(config).eval()
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    assert report.replaced("norm") == report.replaced("attention") == report.replaced("gate") == 0
    assert set(reasons(report, "norm").values()) == {"it holds a bias, so it is no RMS norm"}
    attention = reasons(report, "attention")
    assert len(attention) == 2
    assert set(attention.values()) == {"it attends in both directions: opmux's mask is made for decoders"}
    with torch.no_grad():
        assert torch.equal(patched(ids()).last_hidden_state, plain(ids()).last_hidden_state)


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
    agrees_with(plain, patched)
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
    agrees_with(plain, patched)


def test_a_rotation_patched_by_another_library(monkeypatch) -> None:
    source = transformers.models.llama.modeling_llama
    scope = {"__name__": "other_library.rope", "own": source.apply_rotary_pos_emb}
    exec("def rotate(q, k, cos, sin, unsqueeze_dim=1):\n    return own(q, k, cos, sin, unsqueeze_dim)", scope)
    monkeypatch.setattr(source, "apply_rotary_pos_emb", scope["rotate"])
    plain, patched = pair()
    report = opmux_transformers.patch(patched)
    assert set(reasons(report, "rope").values()) == {"already patched: apply_rotary_pos_emb comes from other_library"}
    assert report.replaced("attention") == 2
    agrees_with(plain, patched)


def test_a_model_on_the_meta_device_is_left_as_it_is() -> None:
    with torch.device("meta"):
        patched = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    before = looks(patched)
    report = opmux_transformers.patch(patched)
    meta = "it is on the meta device, where nothing can be checked: load the weights first"
    for kind in ("norm", "gate", "attention", "rope", "residual"):
        assert set(reasons(report, kind).values()) <= {
            meta,
            "nothing was found that makes the cos and sin to check it with",
        }
        assert report.replaced(kind) == 0
    opmux_transformers.unpatch(patched)
    assert looks(patched) == before


def test_a_model_of_ones_own_without_anything_of_transformers() -> None:
    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(16))
            self.tiny = 1e-5

        def forward(self, x):
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.tiny) * self.weight

    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both, self.last = nn.Linear(16, 64), nn.Linear(32, 16)

        def forward(self, x):
            gate, up = self.both(x).chunk(2, -1)
            return self.last(functional.gelu(gate) * up)

    plain = nn.Sequential(Norm(), Packed(), nn.RMSNorm(16, eps=1e-6), nn.LayerNorm(16, bias=False), nn.PReLU(16))
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    assert {(row.module, row.op) for row in report.rows if row.op} == {
        ("0", "rms_norm"), ("1", "gelu_and_mul"), ("2", "rms_norm"),
    }  # fmt: skip
    assert set(reasons(report, "norm")) == {"3", "4"}
    assert "no attention of transformers was found in it" in report.notes
    x = torch.randn(3, 16)
    with opmux.trace() as trace, torch.no_grad():
        torch.testing.assert_close(patched(x), plain(x), **CLOSE)
    assert {row.op for row in trace.rows} == {"rms_norm", "gelu_and_mul"}
