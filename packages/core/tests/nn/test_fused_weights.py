"""A state dict in the one form loads into a module of the other."""

from typing import Any

import pytest
import torch
from nn.blocks import inputs, randomise

from opmux import nn

MODULES: dict[str, Any] = {
    "mlp": lambda fused: nn.GatedMLP(16, 24, bias=True, fused=fused),
    "attention": lambda fused: nn.Attention(16, 4, 2, value_dim=6, bias=True, fused=fused),
    "attention without biases": lambda fused: nn.Attention(16, 4, 2, qk_norm="head", sinks=True, fused=fused),
}


@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
@pytest.mark.parametrize("fused", [True, False], ids=["into fused", "into apart"])
@pytest.mark.parametrize("assign", [True, False])
def test_both_forms_load(make: Any, fused: bool, assign: bool) -> None:
    theirs, ours = torch.nn.Sequential(randomise(make(not fused))), torch.nn.Sequential(make(fused))
    names = list(ours.state_dict())
    given = theirs.state_dict()
    before = dict(given)
    ours.load_state_dict(given, assign=assign)
    assert (list(given), list(ours.state_dict())) == (list(before), names)
    x = inputs(2, 5, 16)
    torch.testing.assert_close(ours(x), theirs(x))


def test_what_does_not_fit_is_named() -> None:
    apart, fused = (nn.Attention(16, 4, kv_heads, fused=kv_heads == 2) for kv_heads in (4, 2))
    with pytest.raises(RuntimeError, match=r"Missing.*qkv_proj\.weight(?s:.*)Unexpected.*k_proj\.weight"):
        fused.load_state_dict(apart.state_dict())
    with pytest.raises(RuntimeError, match=r"Missing.*q_proj\.weight(?s:.*)Unexpected.*qkv_proj\.weight"):
        apart.load_state_dict(fused.state_dict())
    partly = nn.GatedMLP(4, 8).state_dict()
    del partly["up_proj.weight"]
    missing, unexpected = nn.GatedMLP(4, 8, fused=True).load_state_dict(partly, strict=False)
    assert (missing, unexpected) == (["gate_up_proj.weight"], ["gate_proj.weight"])
