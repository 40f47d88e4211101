"""Quantised linears: those whose codes opmux multiplies, and those that are called as they are."""

import copy
from typing import Any

import pytest
import torch
from quantised import WIDE, as_fp8, dequantised, finegrained, linears
from samples import agree, deep_looks, ids, logits, model, ops_of, reasons
from torch import nn
from torch.nn import functional
from transformers.integrations.finegrained_fp8 import FP8Linear, fp8_linear

import opmux
import opmux.nn
import opmux_transformers
from opmux_transformers.kinds import linear as linear_kind

KINDS = ("norm", "gate", "rope", "attention", "residual", "cache", "loss")


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
    agree(patched, plain)
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
    agree(patched, plain)


def test_fine_grained_fp8() -> None:
    plain = model("llama", **WIDE)
    patched = as_fp8(plain)
    before, saved = deep_looks(patched), {name: t.clone() for name, t in patched.state_dict().items()}
    report = opmux_transformers.patch(patched)
    assert report.counts()["linear"] == {"replaced": 14, "left": 0}
    assert not any(report.left(kind) for kind in KINDS)
    assert not any("quantised" in note for note in report.notes)
    found, expected = logits(patched, ids()), logits(dequantised(plain, activations="block", weights="block"), ids())
    assert (found - expected).norm() < 0.02 * expected.norm()
    assert (found - logits(plain, ids())).norm() > 0.05 * expected.norm()
    assert {"quantize", "scaled_linear"} <= ops_of(patched)
    for name, tensor in patched.state_dict().items():
        assert torch.equal(tensor.view(torch.uint8), saved[name].view(torch.uint8))
    opmux_transformers.unpatch(patched)
    assert deep_looks(patched) == before


def linear(k: int = 200, n: int = 136, bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(k, n, bias)


def patched_alone(module: nn.Module) -> Any:
    holder = nn.ModuleDict({"linear": module})
    return holder, opmux_transformers.patch(holder)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("how", "activations", "ops"),
    [
        ({}, "block", {"quantize", "scaled_linear"}),
        ({"block": None}, "token", {"quantize", "scaled_linear"}),
        ({"static": 0.01}, "static", {"static_quantize", "scaled_linear"}),
        ({"static": 0.01, "block": None}, "static", {"static_quantize", "scaled_linear"}),
        ({"form": "ue8m0"}, "block", {"quantize", "scaled_linear"}),
    ],
    ids=["blocks", "tensor", "static blocks", "static tensor", "powers of two"],
)
def test_forms_of_fp8(how: dict[str, Any], activations: str, ops: set[str], bias: bool) -> None:
    plain = linear(bias=bias)
    holder, report = patched_alone(finegrained(plain, **how))
    (row,) = (row for row in report.rows if row.kind == "linear")
    assert row.op.endswith(f"scaled_linear ({activations})"), row.reason
    x = torch.randn(2, 3, 200).requires_grad_()
    with opmux.trace() as traced, torch.no_grad():
        found = holder["linear"](x)
    assert {row.op for row in traced.rows} == ops
    assert 0 < (found - plain(x)).norm() / plain(x).norm() < 0.06
    holder["linear"](x).sum().backward()  # adapters train beside it
    stored = holder["linear"]
    scale = stored.weight_scale_inv.float().reshape(*(stored.weight_scale_inv.shape or (1, 1)))
    weight = opmux.dequantize(stored.weight.detach(), scale.detach(), out_dtype=torch.float32)
    torch.testing.assert_close(x.grad, torch.ones(2, 3, 136) @ weight, rtol=1e-4, atol=1e-4)


class Louder(FP8Linear):
    def forward(self, input):
        return super().forward(input) * 1.01


class Quieter(FP8Linear):
    def forward(self, input):
        return fp8_linear_of_its_own(input * 0.99, self.weight, self.weight_scale_inv, self.block_size)


def fp8_linear_of_its_own(input, weight, scale, block):
    values = weight.to(input.dtype) * scale.repeat_interleave(128, 0)[:136].repeat_interleave(128, 1)[:, :200]
    return functional.linear(input, values)


class Swapped(FP8Linear):
    def forward(self, input):
        return fp8_linear(input, self.weight, self.weight_scale_inv.flip(0), self.block_size, self.bias)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda made: setattr(made, "__class__", Quieter), "on random codes it differs from the replacement by"),
        (lambda made: setattr(made, "__class__", Swapped), "on random codes it differs from the replacement by"),
        (lambda made: setattr(made, "__class__", Louder), "its forward raises ImportError on the input of a check"),
        (lambda made: setattr(made, "activation_scheme", "static"), "quantised: it computes as before"),
        (lambda made: setattr(made, "block_size", (128, 64)), "quantised: it computes as before"),
        (lambda made: made.to("meta"), "it is on the meta device, where nothing can be checked"),
        (lambda made: setattr(made, "forward", lambda x: x), "already patched: its forward was replaced by"),
        (
            lambda made: setattr(made.weight_scale_inv, "data", torch.ones(3, 2)),
            "quantised: its scales [3, 2] are not those of a tensor, channels, or 128x128 blocks",
        ),
        (
            lambda made: setattr(made.weight, "data", made.weight.data.view(torch.float8_e4m3fnuz)),
            "its codes are float8_e4m3fnuz, and the device multiplies float8_e4m3fn: convert weight and scales with"
            " opmux.convert_fp8",
        ),
    ],
)
def test_what_is_left(change: Any, reason: str) -> None:
    made = finegrained(linear(bias=False))
    change(made)
    _, report = patched_alone(made)
    (row,) = report.left("linear")
    assert row.reason.startswith(reason)


def test_it_can_be_switched_off() -> None:
    holder = nn.ModuleDict({"linear": finegrained(linear())})
    report = opmux_transformers.patch(holder, linear=False)
    assert reasons(report, "linear") == {"linear": "not asked for: linear=False"}
    assert "forward" not in vars(holder["linear"])


def test_models_that_opmux_has_quantised() -> None:
    plain = model("qwen2")
    patched = copy.deepcopy(plain)
    opmux.nn.quantize_(patched, "int8")
    before = logits(patched, ids())
    report = opmux_transformers.patch(patched)
    assert report.counts()["linear"] == {"replaced": 14, "left": 0}
    assert not any(report.left(kind) for kind in KINDS)
    found = logits(patched, ids())
    assert (found - before).norm() < 0.02 * before.norm()
    opmux_transformers.unpatch(patched)
    assert torch.equal(logits(patched, ids()), before)
    assert len(linears(patched)) == 0


def cut_sums(x: torch.Tensor, weight: torch.Tensor, promoted: bool) -> torch.Tensor:
    """Sums as Hopper's matrix units add them: 32 products at a time, all cut at 2**-13 of the largest term."""
    total = part = torch.zeros(len(x), len(weight), dtype=torch.float64)
    for begin in range(0, x.shape[1], 32):
        products = x[:, None, begin : begin + 32] * weight[None, :, begin : begin + 32]
        terms = torch.cat([part[..., None], products], -1)
        unit = torch.exp2(terms.abs().amax(-1, keepdim=True).log2().floor() - 13)
        part = ((terms / unit).trunc() * unit).sum(-1)
        if promoted and begin % 128 == 96:
            total, part = total + part, torch.zeros_like(part)
    return total + part


@pytest.mark.parametrize("k", [128, 1024, 9728, 16384])
def test_what_matrix_units_cut_off_is_allowed_and_sums_over_all_columns_are_not(k: int) -> None:
    generator = torch.Generator().manual_seed(k)
    x, weight = (torch.randn(rows, k, generator=generator).to(torch.float8_e4m3fn) for rows in (5, 96))
    x, values = x.double(), weight.double()
    root = (x.square() @ values.square().T).sqrt()
    error = (cut_sums(x, values, promoted=True) - x @ values.T).abs()
    assert (error <= linear_kind._CUT * root).all()
    assert (error > linear_kind._CUT / 16 * root).any()
    if k == 16384:
        error = (cut_sums(x, values, promoted=False) - x @ values.T).abs()
        assert (error > linear_kind._CUT * root).any()
    on_cpu = linear_kind._allowed(weight, torch.ones(1, 1), x.float())
    torch.testing.assert_close(on_cpu, root * 2.0**-20 * k**0.5)
