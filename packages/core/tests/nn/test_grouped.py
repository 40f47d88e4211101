"""Grouped layers and mixtures, against a loop over groups."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from nn.blocks import inputs, randomise
from torch import Tensor

import opmux
from opmux import nn
from opmux.errors import InvalidArgument
from opmux.nn import mixture

HIDDEN, INTERMEDIATE, EXPERTS, TOP_K = 16, 12, 5, 2


class Loop(torch.nn.Module):
    """The same mixture, token by token."""

    def __init__(self, moe: nn.MoE) -> None:
        super().__init__()
        self.gate_up_proj = torch.nn.Parameter(moe.gate_up_proj.detach().clone())
        self.down_proj = torch.nn.Parameter(moe.down_proj.detach().clone())
        self.gate = {"silu": F.silu, "gelu": F.gelu}[moe.activation]

    def forward(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        found = []
        for row, experts, factors in zip(x, ids, weights, strict=True):
            total = torch.zeros_like(row)
            for expert, factor in zip(experts.tolist(), factors, strict=True):
                gate, up = (self.gate_up_proj[expert] @ row).chunk(2)
                total = total + factor * (self.down_proj[expert] @ (self.gate(gate) * up))
            found.append(total)
        return torch.stack(found) if found else x.clone()


def routed(tokens: int) -> tuple[Tensor, Tensor]:
    weights, ids = torch.softmax(inputs(tokens, EXPERTS), -1).topk(TOP_K)
    return ids, weights


EXACT = {"rtol": 1e-9, "atol": 1e-9}


def mixed(x: Any, **other: Any) -> Tensor:
    given: dict[str, Any] = {
        "ids": torch.zeros(3, 1).long(), "weights": torch.ones(3, 1), "up": torch.ones(4, 8, 16),
        "down": torch.ones(4, 16, 8), "between": torch.relu, **other,
    }  # fmt: skip
    return nn.mix_experts(x, **given)


@pytest.mark.parametrize("tokens", [0, 1, 7, 40])
@pytest.mark.parametrize("few", [0, 64])
@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_a_mixture_is_the_sum_of_its_experts(tokens: int, few: int, activation: str) -> None:
    moe = randomise(nn.MoE(HIDDEN, INTERMEDIATE, EXPERTS, activation, few=few, dtype=torch.float64))
    x, (ids, weights) = inputs(tokens, HIDDEN, dtype=torch.float64), routed(tokens)
    with torch.no_grad(), opmux.trace() as traced:
        found = moe(x, ids, weights)
    torch.testing.assert_close(found, Loop(moe)(x, ids, weights), **EXACT)
    product = "masked_grouped_linear" if few and ids.numel() > EXPERTS else "grouped_linear"
    assert {row.op: row.calls for row in traced.rows} == {product: 2, f"{activation}_and_mul": 1}


@pytest.mark.parametrize("tokens", [1, 40])
@pytest.mark.parametrize("compared", [0, 512])
def test_rows_are_sorted_by_comparing_them_or_by_torch(
    compared: int, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixture, "COMPARED", compared)
    moe = randomise(nn.MoE(HIDDEN, INTERMEDIATE, EXPERTS, few=0, dtype=torch.float64))
    x, (ids, weights) = inputs(tokens, HIDDEN, dtype=torch.float64), routed(tokens)
    with torch.no_grad():
        torch.testing.assert_close(moe(x, ids, weights), Loop(moe)(x, ids, weights), **EXACT)


@pytest.mark.parametrize("few", [0, 64])
def test_the_comparison_finds_a_wrong_mixture(few: int) -> None:
    moe = randomise(nn.MoE(HIDDEN, INTERMEDIATE, EXPERTS, few=few, dtype=torch.float64))
    x, (ids, weights) = inputs(7, HIDDEN, dtype=torch.float64), routed(7)
    wrong = {
        "another expert": (x, (ids + 1) % EXPERTS, weights),
        "experts exchanged": (x, ids.flip(1), weights),
        "not weighted": (x, ids, torch.ones_like(weights)),
        "one expert dropped": (x, ids, weights * torch.tensor([1.0, 0.0])),
        "rows of the neighbour": (x.roll(1, 0), ids, weights),
    }
    with torch.no_grad():
        expected = Loop(moe)(x, ids, weights)
        for arguments in wrong.values():
            assert not torch.allclose(moe(*arguments), expected, rtol=1e-3, atol=1e-3)
        moe.gate_up_proj.copy_(moe.gate_up_proj.roll(INTERMEDIATE, 1))  # the halves of the gate exchanged
        assert not torch.allclose(moe(x, ids, weights), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("few", [0, 64])
def test_an_expert_that_a_token_names_twice_counts_twice(few: int) -> None:
    moe = randomise(nn.MoE(HIDDEN, INTERMEDIATE, EXPERTS, few=few, dtype=torch.float64))
    x, ids = inputs(3, HIDDEN, dtype=torch.float64), torch.tensor([[2, 2, 2], [1, 2, 1], [2, 0, 4]], dtype=torch.int32)
    weights = inputs(3, 3).double()
    with torch.no_grad():
        torch.testing.assert_close(moe(x, ids, weights), Loop(moe)(x, ids, weights), **EXACT)


@pytest.mark.parametrize("few", [0, 64])
def test_experts_with_biases_and_something_after_them(few: int) -> None:
    moe = randomise(nn.MoE(HIDDEN, INTERMEDIATE, EXPERTS, dtype=torch.float64))
    x, (ids, weights) = inputs(7, HIDDEN, dtype=torch.float64), routed(7)
    up, down = moe.gate_up_proj.detach().transpose(1, 2).contiguous(), moe.down_proj.detach()  # (experts, in, out)
    biases = inputs(EXPERTS, 2 * INTERMEDIATE).double(), inputs(EXPERTS, HIDDEN).double()
    found = nn.mix_experts(
        x, ids, weights, up.mT, down, lambda both: both[..., ::2] * both[..., 1::2].sigmoid(),
        up_bias=biases[0], down_bias=biases[1], after=torch.tanh, few=few,
    )  # fmt: skip
    for t in range(len(x)):
        expected = torch.zeros(HIDDEN, dtype=torch.float64)
        for expert, factor in zip(ids[t].tolist(), weights[t], strict=True):
            both = x[t] @ up[expert] + biases[0][expert]
            expected += factor * torch.tanh(down[expert] @ (both[::2] * both[1::2].sigmoid()) + biases[1][expert])
        torch.testing.assert_close(found[t], expected, **EXACT)


def test_gradients_of_a_mixture() -> None:
    ours = randomise(nn.MoE(HIDDEN, INTERMEDIATE, EXPERTS))
    theirs, (ids, weights) = Loop(ours), routed(9)
    a, b = (inputs(9, HIDDEN).requires_grad_() for _ in range(2))
    mine, other = (weights.clone().requires_grad_() for _ in range(2))
    ours(a, ids, mine).square().sum().backward()
    theirs(b, ids, other).square().sum().backward()
    pairs = [(a, b), (mine, other), *zip(ours.parameters(), theirs.parameters(), strict=True)]
    for one, two in pairs:
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-3, atol=1e-3)


def test_a_gradient_of_what_is_between() -> None:
    x, (ids, weights) = inputs(3, HIDDEN), routed(3)
    up, down = inputs(EXPERTS, INTERMEDIATE, HIDDEN), inputs(EXPERTS, HIDDEN, INTERMEDIATE)
    factors = [torch.full((INTERMEDIATE,), 2.0, requires_grad=True) for _ in range(2)]
    for factor, few in zip(factors, (32, 0), strict=True):

        def between(rows: Tensor, factor: Tensor = factor) -> Tensor:
            return torch.relu(rows) * factor

        nn.mix_experts(x, ids, weights, up, down, between, few=few).sum().backward()
    assert factors[0].grad is not None
    torch.testing.assert_close(factors[0].grad, factors[1].grad)


def test_leading_dims_and_names() -> None:
    moe = nn.MoE(HIDDEN, INTERMEDIATE, EXPERTS, dtype=torch.bfloat16)
    assert sorted(moe.state_dict()) == ["down_proj", "gate_up_proj"]
    assert "hidden=16, intermediate=12, experts=5, activation='silu', few=32" in repr(moe)
    x, (ids, weights) = inputs(6, HIDDEN, dtype=torch.bfloat16), routed(6)
    with torch.no_grad():
        flat = moe(x, ids, weights)
        assert torch.equal(moe(x.view(2, 3, HIDDEN), ids.view(2, 3, -1), weights.view(2, 3, -1)).view(6, -1), flat)
    assert flat.dtype == torch.bfloat16


def test_a_mixture_under_autocast() -> None:
    moe, (ids, weights) = randomise(nn.MoE(HIDDEN, INTERMEDIATE, EXPERTS)), routed(6)
    with torch.autocast("cpu", torch.bfloat16):
        found = moe(inputs(6, HIDDEN), ids, weights)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), moe(inputs(6, HIDDEN), ids, weights), rtol=0.1, atol=0.1)


def test_a_mixture_compiles_whole() -> None:
    moe, (ids, weights) = randomise(nn.MoE(HIDDEN, INTERMEDIATE, EXPERTS)), routed(6)
    x = inputs(6, HIDDEN)
    compiled = torch.compile(moe, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, ids, weights), moe(x, ids, weights))


def test_a_grouped_layer_is_a_linear_for_each_group() -> None:
    layer = nn.GroupedLinear(3, 8, 5)
    x, offsets = inputs(6, 8), torch.tensor([0, 4, 4, 6], dtype=torch.int32)
    expected = torch.cat([F.linear(x[:4], layer.weight[0]), F.linear(x[4:], layer.weight[2])])
    torch.testing.assert_close(layer(x, offsets), expected)
    assert repr(layer) == "GroupedLinear(groups=3, in_features=8, out_features=5)"
    assert bool((layer.weight.abs() <= 8**-0.5).all())
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x, offsets).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.MoE(16, 0, 4), "MoE: `intermediate` expected a whole number, 1 or more, got 0"),
        (lambda: nn.MoE(16, 8, 4, few=-1), "MoE: `few` expected a whole number, 0 or more, got -1"),
        (
            lambda: nn.MoE(16, 8, 4, "relu"),
            "MoE: `activation` expected one of silu, gelu, gelu_tanh, gelu_pytorch_tanh",
        ),
        (lambda: nn.GroupedLinear(0, 8, 8), "GroupedLinear: `groups` expected a whole number, 1 or more, got 0"),
        (
            lambda: nn.MoE(16, 8, 4)(inputs(3, 16), torch.zeros(3, 0).long(), torch.ones(3, 0)),
            "MoE: `ids` expected one expert or more for each token, got top_k = 0; give the router's choice",
        ),
        (
            lambda: nn.MoE(16, 8, 4)(inputs(3, 16), torch.zeros(2, 1).long(), torch.ones(2, 1)),
            "MoE: `ids` expected shape (3, top_k), got [2, 1]",
        ),
        (
            lambda: nn.MoE(16, 8, 4)(inputs(3, 16), torch.zeros(3, 1).long(), torch.ones(3, 2)),
            "MoE: `weights` expected shape [3, 1], got [3, 2]",
        ),
        (
            lambda: nn.MoE(16, 8, 4)(inputs(3, 15), torch.zeros(3, 1).long(), torch.ones(3, 1)),
            "MoE: `x` expected a last dim of hidden = 16, got shape [3, 15]; make the mixture for this size",
        ),
        (
            lambda: mixed(inputs(3, 15)),
            "mix_experts: `x` expected shape (tokens, 16), the hidden size of `up`, got shape [3, 15]",
        ),
        (
            lambda: mixed(inputs(1, 3, 16)),
            "mix_experts: `x, up, down` expected (tokens, hidden), (experts, width, hidden) and (experts, hidden,"
            " intermediate), got shapes [1, 3, 16], [4, 8, 16] and [4, 16, 8]",
        ),
        (
            lambda: mixed(inputs(3, 16), ids=torch.zeros(2, 1).long()),
            "mix_experts: `ids` expected shape (3, top_k), got [2, 1]",
        ),
        (
            lambda: mixed(inputs(3, 16), weights=torch.ones(3, 2)),
            "mix_experts: `weights` expected shape [3, 1], got [3, 2]",
        ),
        (
            lambda: mixed(inputs(3, 16), down_bias=torch.ones(4, 8)),
            "mix_experts: `down_bias` expected shape [4, 16], got [4, 8]",
        ),
        (
            lambda: mixed(inputs(3, 16), ids=torch.zeros(3, 1)),
            "mix_experts: `ids` expected an integer dtype, got float32; give the indices of experts",
        ),
        (
            lambda: mixed(inputs(3, 16), ids=torch.zeros(3, 1).bool()),
            "mix_experts: `ids` expected an integer dtype, got bool; give the indices of experts",
        ),
        (
            lambda: mixed(inputs(3, 16), up_bias=torch.ones(4, 8, dtype=torch.bfloat16)),
            "mix_experts: `up_bias` expected dtype float32, got bfloat16; cast it to the dtype of the tokens",
        ),
        (
            lambda: mixed([[1.0] * 16]),
            "mix_experts: `x` expected a torch.Tensor, got a list; convert it with torch.as_tensor",
        ),
        (lambda: mixed(None), "mix_experts: `x` expected a torch.Tensor, got None; convert it with torch.as_tensor"),
        (
            lambda: mixed(inputs(3, 16), ids=[[0]] * 3),
            "mix_experts: `ids` expected a torch.Tensor, got a list; convert it",
        ),
        (
            lambda: mixed(inputs(3, 16), weights=None),
            "mix_experts: `weights` expected a torch.Tensor, got None; convert it",
        ),
        (
            lambda: mixed(inputs(3, 16), up=[torch.ones(8, 16)] * 4),
            "mix_experts: `up` expected a tensor or GroupedCodes, got a list; give those of all experts, in one tensor",
        ),
        (
            lambda: mixed(inputs(3, 16), down=None),
            "mix_experts: `down` expected a tensor or GroupedCodes, got None; give those of all experts, in one tensor",
        ),
        (
            lambda: mixed(inputs(3, 16), up_bias=[1.0]),
            "mix_experts: `up_bias` expected a tensor or None, got a list; give those of all experts, in one tensor",
        ),
        (
            lambda: mixed(inputs(3, 16), between="silu"),
            "mix_experts: `between` expected a function, got 'silu'; give one that takes and returns a tensor",
        ),
        (
            lambda: mixed(inputs(3, 16), after=1),
            "mix_experts: `after` expected a function or None, got 1; give one that takes and returns a tensor",
        ),
        (
            lambda: mixed(inputs(3, 16), weights=torch.ones(3, 1, device="meta")),
            "mix_experts: `weights` expected device cpu, that of `x`, got meta; move it to the device of the tokens",
        ),
        (
            lambda: mixed(inputs(16)),
            "mix_experts: `x, up, down` expected (tokens, hidden), (experts, width, hidden) and (experts, hidden,"
            " intermediate), got shapes [16], [4, 8, 16] and [4, 16, 8]; flatten the leading dims of `x`",
        ),
        (
            lambda: mixed(inputs(3, 16), ids=torch.tensor(0)),
            "mix_experts: `ids` expected shape (3, top_k), got []; give the experts of every token",
        ),
        (
            lambda: mixed(inputs(3, 16).long()),
            "mix_experts: `x` expected dtype bfloat16, float16, float32 or float64, got int64; give the tokens before",
        ),
        (
            lambda: mixed(inputs(3, 16).to(torch.float8_e4m3fn)),
            "mix_experts: `x` expected dtype bfloat16, float16, float32 or float64, got float8_e4m3fn; give the tokens",
        ),
        (
            lambda: mixed(inputs(3, 16), weights=torch.ones(3, 1, dtype=torch.int64)),
            "mix_experts: `weights` expected a floating-point dtype, got int64; give the router's weights",
        ),
        (
            lambda: mixed(inputs(3, 16), up=torch.ones(4, 8, 16).bfloat16()),
            "mix_experts: `up` expected dtype float32, that of `x`, got bfloat16; cast it or `x`",
        ),
        (
            lambda: mixed(inputs(3, 16), down=torch.ones(4, 16, 8).double()),
            "mix_experts: `down` expected dtype float32, that of `x`, got float64; cast it or `x`",
        ),
        (
            lambda: mixed(inputs(3, 16), down=torch.ones(4, 16, 8).to(torch.float8_e4m3fn)),
            "mix_experts: `down` expected dtype float32, that of `x`, got float8_e4m3fn; give codes and scales as",
        ),
        (
            lambda: mixed(inputs(3, 16), between=opmux.silu_and_mul),
            "mix_experts: `between` expected a function that returns a tensor of shape [3, 8] here, got one that"
            " returns shape [3, 4]; compute each row on its own, for the sizes of `up` and `down`",
        ),
        (
            lambda: mixed(inputs(3, 16), between=lambda both: None),
            "mix_experts: `between` expected a function that returns a tensor of shape [3, 8] here, got one that"
            " returns NoneType; compute each row",
        ),
        (
            lambda: mixed(inputs(3, 16), after=lambda rows: rows[:, 1:]),
            "mix_experts: `after` expected a function that returns a tensor of shape [3, 16] here, got one that"
            " returns shape [3, 15]; compute each row",
        ),
        (
            lambda: nn.MoE(16, 8, 4)(None, None, None),
            "MoE: `x` expected a torch.Tensor, got None; convert it with torch.as_tensor",
        ),
        (
            lambda: nn.GroupedLinear(2, 8, 8)(None, torch.tensor([0, 1, 2])),  # type: ignore[arg-type]
            "grouped_linear: `x` expected a torch.Tensor, got None; convert it with torch.as_tensor",
        ),
        (
            lambda: mixed(inputs(3, 16), few=True),
            "mix_experts: `few` expected a whole number, 0 or more, got True; 0 never takes the masked product",
        ),
    ],
)
def test_what_is_refused(make, message: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        make()
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize("few", [0, 64])
def test_what_lies_between_codes_has_to_fit_too(few: int) -> None:
    q, scale = opmux.quantize(torch.ones(4, 16, 8), dtype=torch.int8, block=(1, -1))
    how: dict[str, Any] = {"ids": torch.zeros(7, 1).long(), "weights": torch.ones(7, 1), "few": few}
    with torch.no_grad(), pytest.raises(InvalidArgument) as raised:
        mixed(inputs(7, 16), down=nn.GroupedCodes(q, scale), between=opmux.silu_and_mul, **how)
    shape = [4, 7, 8] if few else [7, 8]
    assert f"`between` expected a function that returns a tensor of shape {shape} here, got one" in str(raised.value)


def test_autocast_casts_other_dtypes_before_they_are_compared() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert mixed(inputs(3, 16), up=torch.ones(4, 8, 16).half()).dtype is torch.bfloat16


def test_experts_that_do_not_fit_each_other_are_refused() -> None:
    x, (ids, weights) = inputs(3, HIDDEN), routed(3)
    up = inputs(EXPERTS, INTERMEDIATE, HIDDEN)
    with pytest.raises(InvalidArgument) as raised:
        nn.mix_experts(x, ids, weights, up, inputs(EXPERTS - 1, HIDDEN, INTERMEDIATE), torch.relu)
    assert str(raised.value) == (
        f"mix_experts: `down` expected shape ({EXPERTS}, {HIDDEN}, intermediate), as `up` and `x` have it, "
        f"got shape [{EXPERTS - 1}, {HIDDEN}, {INTERMEDIATE}]; take both weights of one mixture"
    )


@pytest.mark.parametrize("wrong", [EXPERTS, -1])
@pytest.mark.parametrize("few", [0, 64])
@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("tokens", [2, 3])
def test_ids_of_no_expert_are_refused(tokens: int, check: bool, few: int, wrong: int) -> None:
    moe, (ids, weights) = nn.MoE(HIDDEN, INTERMEDIATE, EXPERTS, few=few), routed(tokens)
    ids[1, 0] = wrong
    with opmux.policy.override(check=check), torch.no_grad(), pytest.raises(InvalidArgument) as raised:
        moe(inputs(tokens, HIDDEN), ids, weights)
    assert str(raised.value) == (
        f"mix_experts: `ids` expected numbers from 0 to below experts = {EXPERTS}, got {wrong}; "
        "check the router that gave them"
    )
