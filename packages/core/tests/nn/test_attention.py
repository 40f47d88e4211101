"""Attention with its projections, against a plain formulation in torch."""

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from nn.blocks import HEADS, HIDDEN, KV_HEADS, assert_same, inputs, randomise
from torch import Tensor

import opmux
from opmux import nn
from opmux.errors import InvalidArgument


class Plain(torch.nn.Module):
    """The same, head by head and score by score."""

    def __init__(self, ours: nn.Attention, **options: Any) -> None:
        super().__init__()
        self.o = options
        self.sizes = ours.heads, ours.kv_heads, ours.head_dim, ours.value_dim
        self.eps, self.cos, self.sin = 1e-6, getattr(ours.rotary, "cos", None), getattr(ours.rotary, "sin", None)
        for name, child in ours.named_children():
            if isinstance(child, nn.Linear):
                made = torch.nn.Linear(child.in_features, child.out_features, child.bias is not None)
                self.add_module(name, made)
            elif isinstance(child, nn.RMSNorm):
                self.add_module(name, torch.nn.RMSNorm(child.normalized_shape, 1e-6))
        self.sinks = None if ours.sinks is None else torch.nn.Parameter(ours.sinks.detach().clone())

    def rotate(self, x: Tensor) -> Tensor:
        if self.cos is None:
            return x
        cos, sin = (t[: x.shape[1], None] for t in (self.cos, self.sin))
        a, b = x[..., : cos.shape[-1]], x[..., cos.shape[-1] : 2 * cos.shape[-1]]
        return torch.cat((a * cos - b * sin, b * cos + a * sin, x[..., 2 * cos.shape[-1] :]), -1)

    def forward(self, x: Tensor) -> Tensor:
        heads, kv_heads, head_dim, value_dim = self.sizes
        if hasattr(self, "qkv_proj"):
            q, k, v = self.qkv_proj(x).split([heads * head_dim, kv_heads * head_dim, kv_heads * value_dim], -1)
        else:
            q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if self.o.get("qk_norm") == "all":
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (t.unflatten(-1, (-1, d)) for t, d in ((q, head_dim), (k, head_dim), (v, value_dim)))
        if self.o.get("qk_norm") == "head":
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = self.rotate(q), self.rotate(k)
        k, v = (t.repeat_interleave(heads // kv_heads, dim=2) for t in (k, v))
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * self.o.get("scale", head_dim**-0.5)
        if cap := self.o.get("softcap"):
            scores = cap * torch.tanh(scores / cap)
        i, j = torch.arange(x.shape[1])[:, None], torch.arange(x.shape[1])
        left, right = self.o.get("window", (-1, -1))
        seen = (j <= i) | (not self.o.get("causal", True))
        seen = seen & ((left < 0) | (j >= i - left)) & ((right < 0) | (j <= i + right))
        scores = scores.masked_fill(~seen, float("-inf"))
        if self.sinks is not None:
            sink = self.sinks[None, :, None, None].expand(*scores.shape[:3], 1)
            weights = torch.cat((scores, sink), -1).softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(-1)
        return self.o_proj(torch.einsum("bhij,bjhd->bihd", weights, v).flatten(-2))


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "both ways": {"causal": False},
    "biases": {"bias": True},
    "bias but on the output": {"bias": True, "out_bias": False},
    "fused": {"fused": True, "bias": True},
    "norm of each head": {"qk_norm": "head"},
    "norm of all heads": {"qk_norm": "all", "fused": True},
    "window": {"window": (2, -1)},
    "window both ways": {"window": (2, 1), "causal": False},
    "softcap": {"softcap": 2.0},
    "sinks": {"sinks": True},
    "scale": {"scale": 0.25},
    "values of another size": {"value_dim": 12, "fused": True},
    "all": {"sinks": True, "softcap": 3.0, "window": (3, 0), "qk_norm": "head", "scale": 0.5, "fused": True},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rope", ["no rope", "rope", "partial rope"])
def test_against_a_plain_formulation(kind: str, rope: str) -> None:
    partial = {"partial_rotary_factor": 0.5} if rope == "partial rope" else {}
    rotary = None if rope == "no rope" else nn.RotaryEmbedding(HIDDEN // HEADS, 32, **partial)
    ours = nn.Attention(HIDDEN, HEADS, KV_HEADS, rotary=rotary, **KINDS[kind])
    theirs = Plain(ours, **KINDS[kind])
    randomise(theirs)
    ours.load_state_dict(theirs.state_dict())
    assert_same(ours, theirs, 0.5 * inputs(2, 7, HIDDEN))


def test_against_torch_with_a_head_size_of_its_own() -> None:
    ours = randomise(nn.Attention(HIDDEN, HEADS, 1, 16))
    x = inputs(2, 7, HIDDEN)
    q, k, v = (p(x).unflatten(-1, (-1, 16)).transpose(1, 2) for p in (ours.q_proj, ours.k_proj, ours.v_proj))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(ours(x), ours.o_proj(out.transpose(1, 2).flatten(-2)), rtol=1e-4, atol=1e-5)


def test_names_are_those_of_the_families() -> None:
    def names(**options: Any) -> set[str]:
        return {name.removesuffix(".weight") for name in nn.Attention(8, 2, **options).state_dict()}

    rotary = nn.RotaryEmbedding(4, 8)
    assert names(rotary=rotary) == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert names(fused=True) == {"qkv_proj", "o_proj"}
    assert names(qk_norm="head", sinks=True) - names() == {"q_norm", "k_norm", "sinks"}
    assert "q_proj.bias" in names(bias=True, out_bias=False)
    assert "o_proj.bias" not in names(bias=True, out_bias=False)


def test_norms_with_an_offset() -> None:
    attention = nn.Attention(8, 2, qk_norm="all", qk_norm_eps=1e-3, qk_norm_offset=1.0)
    assert (attention.q_norm.eps, attention.q_norm.weight_offset) == (1e-3, 1.0)
    assert torch.equal(attention.k_norm.weight, torch.zeros(8))


def test_positions_and_a_rope_of_the_call() -> None:
    rotary, other = nn.RotaryEmbedding(8, 32), nn.RotaryEmbedding(8, 32, 100.0)
    inside, outside = nn.Attention(HIDDEN, HEADS, rotary=rotary), nn.Attention(HIDDEN, HEADS)
    outside.load_state_dict(inside.state_dict())
    x, positions = inputs(2, 7, HIDDEN), torch.randint(32, (2, 7))
    for where in (None, positions):
        torch.testing.assert_close(outside(x, where, rotary=rotary), inside(x, where), rtol=0, atol=0)
        torch.testing.assert_close(inside(x, where, rotary=other), outside(x, where, rotary=other), rtol=0, atol=0)
    assert not torch.allclose(inside(x, positions), inside(x))
    # A function serves as well, and positions that all shift alike change nothing.
    torch.testing.assert_close(outside(x, rotary=lambda q, k, _: (q, k)), outside(x), rtol=0, atol=0)
    shifted = torch.arange(7).expand(2, 7) + 9
    torch.testing.assert_close(inside(x, shifted), inside(x), rtol=1e-4, atol=1e-5)


def test_reset_parameters() -> None:
    attention = randomise(nn.Attention(8, 2, qk_norm="head", sinks=True, rotary=nn.RotaryEmbedding(4, 8)))
    before = attention.q_proj.weight.clone()
    attention.reset_parameters()
    assert not torch.equal(attention.q_proj.weight, before)
    assert torch.equal(attention.sinks, torch.zeros(2))
    assert torch.equal(attention.k_norm.weight, torch.ones(4))


def test_it_shows_what_is_unusual() -> None:
    shown = nn.Attention(8, 2, value_dim=6, window=(3, -1), softcap=5.0, sinks=True).extra_repr()
    assert shown == (
        "heads=2, kv_heads=2, head_dim=4, causal=True, value_dim=6, window=(3, -1), softcap=5.0, sinks=True"
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: nn.Attention(10, 4),
            "Attention: `head_dim` expected a number, since heads = 4 does not divide hidden = 10, got None; "
            "pass it, or change one of the two",
        ),
        (
            lambda: nn.Attention(8, 4, 3),
            "Attention: `kv_heads` expected a divisor of heads = 4, got 3; "
            "each kv head serves the same number of query heads",
        ),
        (
            lambda: nn.Attention(8, 4, qk_norm="heads"),
            "Attention: `qk_norm` expected 'head', 'all' or None, got 'heads'; check the spelling",
        ),
        (
            lambda: nn.Attention(8, 4)(torch.zeros(5, 8)),
            "Attention: `x` expected shape (batch, seq, hidden), since no context is given, got shape (5, 8); "
            "pass x[None] for a single sequence, or a context for ragged tokens",
        ),
        (
            lambda: nn.Attention(8, 0),
            "Attention: `heads` expected a whole number, 1 or more, got 0; check the model's sizes",
        ),
        (
            lambda: nn.Attention(8, 4.0),
            "Attention: `heads` expected a whole number, 1 or more, got 4.0; check the model's sizes",
        ),
        (
            lambda: nn.Attention(8, 4, value_dim=-2),
            "Attention: `value_dim` expected a whole number, 1 or more, got -2; check the model's sizes",
        ),
    ],
    ids=["head_dim", "kv_heads", "qk_norm", "x", "no heads", "part of a head", "size of the values"],
)
def test_errors(make: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        make()


def test_ops_that_run() -> None:
    attention = nn.Attention(HIDDEN, HEADS, qk_norm="head", rotary=nn.RotaryEmbedding(8, 32))
    with opmux.trace() as traced, torch.no_grad():
        attention(inputs(1, 3, HIDDEN))
    assert [(row.op, row.calls) for row in traced.rows] == [
        ("apply_rope", 1), ("attention", 1), ("linear", 4), ("rms_norm", 2),
    ]  # fmt: skip
