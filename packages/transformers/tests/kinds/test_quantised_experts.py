"""Experts of 8 bits: those that transformers has quantised to fine-grained fp8, and those that `patch` quantises."""

import copy
from typing import Any

import pytest
import torch
from quantised import with_fp8_experts
from samples import CLOSE, agree, deep_looks, ids, logits, ops_of, pair, reasons
from torch import Tensor, nn
from transformers.integrations import finegrained_fp8

import opmux
import opmux_transformers
from opmux_transformers.configs import small_config
from opmux_transformers.finegrained import rounding_fp8_linear
from opmux_transformers.quantised_check import compare_quantised

SCALED = "scaled_grouped_linear, scaled_masked_grouped_linear, "
WIDE: dict[str, dict[str, Any]] = {
    "mixtral": {"hidden_size": 256, "intermediate_size": 320},
    "qwen3_moe": {"hidden_size": 256, "moe_intermediate_size": 192},
    "deepseek_v3": {"hidden_size": 256, "moe_intermediate_size": 192},
}
"""Sizes at which weights have several blocks of 128, the last of them not whole."""


def inner(of: Any) -> list[Any]:
    return [module for path, module in of.named_modules() if path.endswith(".experts")]


def fp8(name: str = "mixtral", **how: Any) -> Any:
    return with_fp8_experts(pair(name, **WIDE[name])[0], **how)


@pytest.fixture
def defined(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' product is its definition: its kernel would come from a hub."""
    monkeypatch.setattr(finegrained_fp8, "fp8_linear", rounding_fp8_linear("block"))


def eager(of: Any) -> Any:
    """A copy whose experts are computed by their class's own forward."""
    made = copy.deepcopy(of)
    made.set_experts_implementation("eager")
    return made


@pytest.mark.usefixtures("defined")
@pytest.mark.parametrize("form", ["float", "ue8m0"])
@pytest.mark.parametrize("name", WIDE)
def test_fine_grained_experts_compute_the_same_and_come_back_bit_for_bit(name: str, form: str) -> None:
    patched = fp8(name, form=form)
    plain, before = eager(patched), deep_looks(patched)
    report = opmux_transformers.patch(patched)
    found = {row.module: row.op for row in report.rows if row.kind == "experts"}
    assert len(found) == len(inner(patched)) >= 1
    assert {*found.values()} == {SCALED + "silu_and_mul (block)"}
    assert reasons(report, "residual") == {}
    for seq, product in ((12, "scaled_masked_grouped_linear"), (40, "scaled_grouped_linear")):
        with opmux.trace() as trace:
            own = logits(patched, ids(seq))
        assert {product, "silu_and_mul_quantize"} <= {row.op for row in trace.rows}
        expected = logits(plain, ids(seq))
        assert float((own - expected).norm()) <= 0.01 * float(expected.norm())
    opmux_transformers.unpatch(patched)
    assert deep_looks(patched) == before


@pytest.mark.usefixtures("defined")
def test_the_input_of_fine_grained_experts_has_a_gradient() -> None:
    patched = fp8()
    opmux_transformers.patch(patched)
    patched.train()(ids(), labels=ids()).loss.backward()
    gradient = patched.model.embed_tokens.weight.grad
    assert gradient is not None
    assert bool(gradient.any())
    assert all(p.grad is None for experts in inner(patched) for p in experts.parameters())


def changed(own: Any) -> Any:
    """A model whose first experts are of a subclass."""
    patched = fp8()
    first = inner(patched)[0]
    first.__class__ = type("Mine", (type(first),), {"__module__": __name__, **own})
    return patched


def neighbours(self: Any, input: Tensor, weight: Tensor, weight_scale_inv: Tensor, activation_scale: Any = None) -> Any:
    """The scales of the neighbouring rows of blocks."""
    if weight.element_size() == 1:
        weight_scale_inv = weight_scale_inv.roll(1, 0)
    return finegrained_fp8.FP8Experts.linear(self, input, weight, weight_scale_inv, activation_scale)


def twice(self: Any, input: Tensor, weight: Tensor, weight_scale_inv: Tensor, activation_scale: Any = None) -> Any:
    """The scales, applied twice."""
    if weight.element_size() == 1:
        weight_scale_inv = weight_scale_inv.float().square()
    return finegrained_fp8.FP8Experts.linear(self, input, weight, weight_scale_inv, activation_scale)


@pytest.mark.usefixtures("defined")
@pytest.mark.parametrize(
    "own",
    [
        {"linear": neighbours},
        {"linear": twice},
    ],
    ids=["neighbouring scales", "scales twice"],
)
def test_other_scales_are_found(own: dict[str, Any]) -> None:
    left = reasons(opmux_transformers.patch(changed(own)), "experts")
    assert [*left] == ["model.layers.0.mlp.experts"]
    assert left["model.layers.0.mlp.experts"].startswith("on random codes it differs from the replacement by ")


def relu(self: Any, both: Tensor) -> Tensor:
    gate, up = both.chunk(2, -1)
    return gate.relu() * up


@pytest.mark.usefixtures("defined")
def test_another_gate_is_called_between_the_products() -> None:
    patched = changed({"_apply_gate": relu})
    plain = eager(patched)
    report = opmux_transformers.patch(patched)
    ops = [row.op for row in report.rows if row.kind == "experts"]
    assert ops == [SCALED + "its own gate (block)", SCALED + "silu_and_mul (block)"]
    own, expected = logits(patched, ids()), logits(plain, ids())
    assert float((own - expected).norm()) <= 0.01 * float(expected.norm())


def test_what_no_op_multiplies_is_left_with_a_reason() -> None:
    patched = fp8()
    first, second = inner(patched)
    first.activation_scheme = "static"
    second.gate_up_proj_scale_inv.data = second.gate_up_proj_scale_inv.data[:, :2]
    assert reasons(opmux_transformers.patch(patched), "experts") == {
        "model.layers.0.mlp.experts": "quantised: the scales of its input are static, one for each expert",
        "model.layers.1.mlp.experts": (
            "quantised: its scales [4, 2, 2] are not those of a tensor, channels, or 128x128 blocks"
        ),
    }
    patched = fp8()
    inner(patched)[0].down_proj = nn.Parameter(torch.zeros(4, 256, 160, dtype=torch.int8), requires_grad=False)
    left = reasons(opmux_transformers.patch(patched), "experts")
    assert left == {"model.layers.0.mlp.experts": "quantised: it computes as before"}


@pytest.mark.parametrize("codes", ["fp8", "int8"])
@pytest.mark.parametrize("name", ["mixtral", "gpt_oss", "qwen3_moe"])
def test_patch_quantises_experts(name: str, codes: str) -> None:
    """Transposed weights and weights with biases are among them."""
    comparisons, report = compare_quantised(small_config(name), codes)
    assert [c for c in comparisons if not c.passed] == []
    assert [c.what for c in comparisons] == ["modules", "logits", "tokens"]
    found = {row.module: row.op for row in report.rows if row.kind == "quantize" and row.module.endswith("experts")}
    assert len(found) == 2
    assert {*found.values()} == {"quantize, " + SCALED.removesuffix(", ") + " (token)"}


def test_quantised_experts_follow_their_weights_and_come_back_bit_for_bit() -> None:
    plain, patched = pair("mixtral")
    before = deep_looks(patched)
    opmux_transformers.patch(patched, quantize="int8")
    first = logits(patched, ids())
    assert "scaled_masked_grouped_linear" in ops_of(patched)
    other = copy.deepcopy(patched)
    torch.testing.assert_close(logits(other, ids()), first)
    with torch.no_grad():
        inner(other)[0].down_proj.mul_(-1)
    changed_logits = logits(other, ids())
    assert float((changed_logits - first).norm()) > 0.01 * float(first.norm())
    inner(other)[0].down_proj.data.mul_(-1)
    opmux_transformers.patch(other, quantize="int8")
    torch.testing.assert_close(logits(other, ids()), first)
    opmux_transformers.unpatch(patched)
    assert deep_looks(patched) == before
    agree(patched, plain)


def test_quantised_experts_are_trained() -> None:
    """The gradients pass through the quantisation: they are near those of the plain model."""
    plain, patched = pair("mixtral", num_hidden_layers=1)
    opmux_transformers.patch(patched, quantize="int8")
    with opmux.trace() as trace:
        patched.train()(ids(), labels=ids()).loss.backward()
    assert {"scaled_grouped_linear", "grouped_weight_grad"} <= {row.op for row in trace.rows}
    plain.train()(ids(), labels=ids()).loss.backward()
    for (path, own), theirs in zip(patched.named_parameters(), plain.parameters(), strict=True):
        assert own.grad is not None, path
        assert float((own.grad - theirs.grad).norm()) <= 0.3 * float(theirs.grad.norm()), path


def test_experts_that_are_not_replaced_are_not_quantised() -> None:
    plain, patched = pair("mixtral")
    report = opmux_transformers.patch(patched, quantize="fp8", experts=False)
    left = reasons(report, "quantize")
    assert left["model.layers.0.mlp.experts"] == "only replaced experts are quantised"
    _, flawed = pair("mixtral")
    with torch.no_grad():
        inner(flawed)[0].gate_up_proj[0, 0, 0] = float("nan")
    left = reasons(opmux_transformers.patch(flawed, quantize="fp8"), "quantize")
    assert left["model.layers.0.mlp.experts"] == "its gate_up_proj has NaN or infinity in it"
    torch.testing.assert_close(logits(opmux_patched(plain), ids()), logits(plain, ids()), **CLOSE)


def opmux_patched(plain: Any) -> Any:
    made = copy.deepcopy(plain)
    opmux_transformers.patch(made)
    return made
