"""Mixtures whose weights are 8-bit codes, against a loop over experts that multiplies what the codes stand for."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from nn.blocks import inputs
from torch import Tensor

import opmux
from opmux import nn
from opmux.errors import InvalidArgument
from opmux.nn.quantized_product import ACTIVATIONS, WEIGHTS

HIDDEN, INTERMEDIATE, EXPERTS, TOP_K = 160, 144, 5, 2


def codes(weight: Tensor, activations: str, weights: str, dtype: torch.dtype, trained: bool = False) -> nn.GroupedCodes:
    q, scale = opmux.quantize(weight.detach(), dtype=dtype, block=WEIGHTS[weights])
    return nn.GroupedCodes(q, scale, activations, weight if trained else None)


def made(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    up = torch.randn(EXPERTS, 2 * INTERMEDIATE, HIDDEN, generator=generator) / HIDDEN**0.5
    down = torch.randn(EXPERTS, HIDDEN, INTERMEDIATE, generator=generator) / INTERMEDIATE**0.5
    return {"up": up, "down": down}


def routed(tokens: int) -> tuple[Tensor, Tensor]:
    weights, ids = torch.softmax(inputs(tokens, EXPERTS), -1).topk(TOP_K)
    return ids, weights


def values(q: Tensor, scale: Tensor) -> Tensor:
    return opmux.dequantize(q, scale, out_dtype=torch.float32, backend="reference")


def loop(x: Tensor, ids: Tensor, weights: Tensor, up: nn.GroupedCodes, down: nn.GroupedCodes, biases: Any) -> Tensor:
    """Expert by expert; rows are rounded to codes before each product."""
    block = ACTIVATIONS[up.activations]
    matrices = [values(w.weight, w.scale) for w in (up, down)]

    def product(rows: Tensor, which: int, expert: int) -> Tensor:
        rows = values(*opmux.quantize(rows, dtype=up.weight.dtype, block=block))
        return rows @ matrices[which][expert].T + (0 if biases is None else biases[which][expert])

    out = torch.zeros_like(x)
    for token, choice in enumerate(ids.tolist()):
        for place, expert in enumerate(choice):
            gate, other = product(x[token : token + 1], 0, expert).chunk(2, -1)
            out[token] += weights[token, place] * product(F.silu(gate) * other, 1, expert)[0]
    return out


@pytest.mark.parametrize("tokens", [0, 1, 9])
@pytest.mark.parametrize("few", [0, 64], ids=["sorted", "masked"])
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("activations", ["token", "block"])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8], ids=str)
def test_a_mixture_of_codes_is_the_sum_of_its_experts(
    tokens: int, few: int, weights: str, activations: str, dtype: torch.dtype
) -> None:
    up, down = (codes(w, activations, weights, dtype) for w in made().values())
    x, (ids, factors) = inputs(tokens, HIDDEN), routed(tokens)
    with torch.no_grad(), opmux.trace() as trace:
        found = nn.mix_experts(x, ids, factors, up, down, opmux.silu_and_mul, few=few)
    expected = loop(x, ids, factors, up, down, None)
    # A value between two codes may be rounded to either, after sums in another order.
    assert float((found - expected).norm()) <= 5e-3 * float(expected.norm())
    ops = {row.op for row in trace.rows}
    product = "scaled_masked_grouped_linear" if few and ids.numel() > EXPERTS else "scaled_grouped_linear"
    assert {product, "quantize", "silu_and_mul_quantize"} <= ops
    assert "silu_and_mul" not in ops


@pytest.mark.parametrize("few", [0, 64], ids=["sorted", "masked"])
def test_biases_and_another_activation(few: int) -> None:
    up, down = (codes(w, "token", "channel", torch.int8) for w in made().values())
    biases = inputs(EXPERTS, 2 * INTERMEDIATE), inputs(EXPERTS, HIDDEN)
    x, (ids, factors) = inputs(9, HIDDEN), routed(9)

    def gate(both: Tensor) -> Tensor:
        first, second = both.chunk(2, -1)
        return F.silu(first) * second

    with torch.no_grad():
        found = nn.mix_experts(
            x, ids, factors, up, down, gate, few=few, up_bias=biases[0], down_bias=biases[1]
        )  # fmt: skip
    expected = loop(x, ids, factors, up, down, biases)
    assert float((found - expected).norm()) <= 5e-3 * float(expected.norm())


def test_the_result_has_the_dtype_of_the_tokens_or_that_of_autocast() -> None:
    up, down = (codes(w, "block", "block", torch.float8_e4m3fn) for w in made().values())
    x, (ids, factors) = inputs(3, HIDDEN), routed(3)
    with torch.no_grad():
        assert nn.mix_experts(x.half(), ids, factors, up, down, opmux.silu_and_mul).dtype is torch.float16
        with torch.autocast("cpu", torch.bfloat16):
            assert nn.mix_experts(x, ids, factors, up, down, opmux.silu_and_mul).dtype is torch.bfloat16


def test_the_gradients_pass_through_the_quantisation() -> None:
    """They are those of the same mixture with the values of the codes, at the activations of the quantised one."""
    plain = {name: w.requires_grad_() for name, w in made().items()}
    up, down = (codes(w, "token", "channel", torch.int8, trained=True) for w in plain.values())
    x, (ids, factors) = inputs(9, HIDDEN).requires_grad_(), routed(9)
    with opmux.trace() as trace:
        nn.mix_experts(x, ids, factors, up, down, opmux.silu_and_mul).square().mean().backward()
    assert {"scaled_grouped_linear", "grouped_weight_grad"} <= {row.op for row in trace.rows}
    found = [x.grad, *(w.grad for w in plain.values())]
    rounded = [values(w.weight, w.scale).requires_grad_() for w in (up, down)]
    other = x.detach().clone().requires_grad_()
    nn.mix_experts(other, ids, factors, *rounded, opmux.silu_and_mul).square().mean().backward()
    for own, expected in zip(found, [other.grad, *(w.grad for w in rounded)], strict=True):
        assert own is not None
        assert float((own - expected).norm()) <= 0.03 * float(expected.norm())


def test_frozen_codes_have_no_gradient() -> None:
    up, down = (codes(w, "token", "channel", torch.int8) for w in made().values())
    x, (ids, factors) = inputs(9, HIDDEN).requires_grad_(), routed(9)
    nn.mix_experts(x, ids, factors, up, down, opmux.silu_and_mul).sum().backward()
    assert x.grad is not None
    assert up.weight.grad is None
    assert bool(x.grad.any())


def test_codes_compile_whole() -> None:
    up, down = (codes(w, "block", "block", torch.float8_e4m3fn) for w in made().values())
    x, (ids, factors) = inputs(9, HIDDEN), routed(9)

    def run(x: Tensor) -> Tensor:
        return nn.mix_experts(x, ids, factors, up, down, opmux.silu_and_mul)

    torch._dynamo.reset()
    with torch.no_grad():
        found = torch.compile(run, fullgraph=True, backend="aot_eager")(x)
        assert float((found - run(x)).norm()) <= 5e-3 * float(found.norm())
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"activations": "static"}, "`activations` expected 'token' or 'block', got 'static'; choose one of them"),
        (
            {"scale": torch.ones(2, 3, 1)},
            "`scale` expected shape (2, 1, 1) or (2, 1, 2) or (2, 8, 1), got (2, 3, 1); quantise it again",
        ),
        (
            {"weight": torch.ones(2, 8, 256)},
            "`weight` expected codes of 8 bits, got float32; quantise it with `opmux.quantize`",
        ),
        ({"weight": None}, "`weight` expected a torch.Tensor, got None; convert it with torch.as_tensor"),
        ({"scale": [1.0]}, "`scale` expected a torch.Tensor, got a list; convert it with torch.as_tensor"),
        ({"original": [1.0]}, "`original` expected a torch.Tensor, got a list; convert it with torch.as_tensor"),
        (
            {"scale": torch.ones(2, 8, 1, dtype=torch.bfloat16)},
            "`scale` expected dtype float32, got bfloat16; give the scales as opmux.quantize returns them",
        ),
        ({"weight": torch.ones(8, 256)}, "`weight` expected 3 dims, got 2; give (experts, n, k)"),
        (
            {"original": torch.ones(2, 8, 255)},
            "`original` expected shape (2, 8, 256), got (2, 8, 255); give what the codes were made of",
        ),
    ],
)
def test_codes_that_do_not_fit_are_refused(given: dict[str, Any], says: str) -> None:
    fitting: dict[str, Any] = {"weight": torch.ones(2, 8, 256, dtype=torch.int8), "scale": torch.ones(2, 8, 1)}
    with pytest.raises(InvalidArgument) as caught:
        nn.GroupedCodes(**{**fitting, **given})
    assert str(caught.value) == f"GroupedCodes: {says}"
