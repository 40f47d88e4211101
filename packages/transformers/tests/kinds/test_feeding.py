"""Which linears of an attention take its input, and whether anything else reads it."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from quantised import calls_of, dequantised
from samples import LLAMA, ids, logits, model
from torch import Tensor, nn

import opmux_transformers
from opmux_transformers.kinds.feeding import fed_linears


def test_an_attention_that_reads_more_than_its_linears_do_is_given_the_norm() -> None:
    class Reading(LLAMA.LlamaAttention):
        def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            result, weights = super().forward(hidden_states, *args, **kwargs)
            return result + 0.1 * hidden_states, weights

    plain = model("llama")
    for layer in plain.model.layers:
        layer.self_attn.__class__ = Reading
    patched = copy.deepcopy(plain)
    opmux_transformers.patch(patched, quantize="int8", attention=False, rope=False)
    found = calls_of(patched, lambda of: logits(of, ids()))
    assert "rms_norm_quantize" not in found
    assert found["add_rms_norm_quantize"] == 2
    expected = logits(dequantised(plain, "int8"), ids())
    assert (logits(patched, ids()) - expected).norm() < 0.02 * expected.norm()


class Attention(nn.Module):
    """Three linears take the input, a fourth what they gave."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, hidden_states: Tensor, scale: float = 1.0) -> Tensor:
        shape = hidden_states.shape  # may be read
        q, k, v = (f(hidden_states) for f in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj((scale * q * k).sigmoid() * v).reshape(shape)


class WithItsInput(Attention):
    def forward(self, hidden_states: Tensor, scale: float = 1.0) -> Tensor:
        return hidden_states + super().forward(hidden_states, scale)


class Twice(Attention):
    def forward(self, hidden_states: Tensor, scale: float = 1.0) -> Tensor:
        return super().forward(hidden_states, scale) * self.q_proj(hidden_states)


class Normed(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.k_proj = nn.LayerNorm(8)


class Refusing(Attention):
    def forward(self, hidden_states: Tensor, scale: float = 1.0) -> Tensor:
        if hidden_states.isnan().any():
            raise ValueError("NaN")
        return super().forward(hidden_states, scale)


class Asking(Attention):
    """Lets what it asks of its input decide, and so does not return NaN where it is NaN."""

    def forward(self, hidden_states: Tensor, scale: float = 1.0) -> Tensor:
        found = super().forward(hidden_states, scale)
        return found if bool(hidden_states.abs().max() < 1e6) else found + 1


def fed(attention: nn.Module) -> tuple[str, ...]:
    """The linears that are fed, of an attention in a layer."""
    layer = nn.ModuleDict({"self_attn": attention})
    trial: Any = SimpleNamespace(copy=lambda: copy.deepcopy(layer))
    x = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return fed_linears(trial, "self_attn", x, {"scale": 0.5})


def test_the_linears_that_take_the_input_are_named_in_the_order_of_their_calls() -> None:
    assert fed(Attention()) == ("q_proj", "k_proj", "v_proj")


@pytest.mark.parametrize("kind", [WithItsInput, Twice, Normed, Refusing, Asking])
def test_an_attention_that_does_more_with_its_input_is_not_fed(kind: type[Attention]) -> None:
    assert fed(kind()) == ()


def test_judging_leaves_no_hook_and_no_forward_behind() -> None:
    attention = Attention()
    fed(attention)
    assert not any(m._forward_pre_hooks or "forward" in vars(m) for m in attention.modules())
