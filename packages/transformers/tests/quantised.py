"""Models as quantisers make them, from a plain one, and the plain model of the same values."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import FineGrainedFP8Config
from transformers.integrations.finegrained_fp8 import FP8Linear, replace_with_fp8_linear

import opmux
from opmux.nn import QuantizedLinear

BLOCK = (128, 128)
WIDE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 384, "head_dim": 64}
"""Sizes at which weights have several blocks of 128."""


def linears(of: nn.Module) -> list[tuple[str, nn.Linear]]:
    """The plain linears of a model's layers, without its head."""
    return [(path, m) for path, m in of.named_modules() if type(m) is nn.Linear and path != "lm_head"]


def put(of: nn.Module, path: str, module: nn.Module) -> None:
    """Replace a module."""
    parent, _, name = path.rpartition(".")
    setattr(of.get_submodule(parent), name, module)


def finegrained(
    linear: nn.Linear, block: tuple[int, int] | None = BLOCK, static: float | None = None, form: str = "float"
) -> FP8Linear:
    """transformers' fine-grained fp8 linear with the values of a plain one."""
    made = FP8Linear(
        linear.in_features, linear.out_features, block_size=block, has_bias=linear.bias is not None, scale_fmt=form,
        activation_scheme="dynamic" if static is None else "static",
    )  # fmt: skip
    weight = linear.weight.detach()
    q, scale = opmux.quantize(weight, dtype=torch.float8_e4m3fn, block=block or (-1, -1))
    if form == "ue8m0":
        scale = torch.exp2(scale.log2().ceil())
        q = opmux.static_quantize(weight, scale, dtype=q.dtype)
        scale = scale.to(torch.float8_e8m0fnu)
    made.weight.data, made.weight_scale_inv.data = q, scale if block else scale.reshape(())
    if static is not None:
        made.activation_scale.data.fill_(static)
    if linear.bias is not None:
        made.bias.data.copy_(linear.bias.detach())
    return made


def as_fp8(plain: nn.Module, **how: Any) -> Any:
    """A copy of a model whose linears are transformers' fine-grained fp8."""
    made = copy.deepcopy(plain)
    for path, linear in linears(made):
        put(made, path, finegrained(linear, **how))
    return made


def with_fp8_experts(plain: nn.Module, form: str = "float", **how: Any) -> Any:
    """A copy of a mixture whose experts are those of fine-grained fp8, put there by transformers; its linears stay."""
    made: Any = copy.deepcopy(plain)
    mixtures = [path for path, _ in made.named_modules() if path.endswith(".experts")]
    others = [path for path, _ in linears(made)]
    config = FineGrainedFP8Config(scale_fmt=form, **how)
    replace_with_fp8_linear(made, [*others, "lm_head"], config)
    for path in mixtures:
        own, module = plain.get_submodule(path), made.get_submodule(path).to_empty(device="cpu")
        for name in ("gate_up_proj", "down_proj"):
            q, scale = opmux.quantize(own.get_parameter(name).detach(), dtype=torch.float8_e4m3fn, block=BLOCK)
            if form == "ue8m0":
                scale = torch.exp2(scale.log2().ceil())
                q = opmux.static_quantize(own.get_parameter(name).detach(), scale, dtype=q.dtype)
            module.get_parameter(name).data = q
            stored = module.get_parameter(f"{name}_scale_inv")
            stored.data = scale.to(stored.dtype)
        module.train(own.training)
    return made


class Dequantised(nn.Module):
    """A linear that rounds weight and input to the codes of another, and multiplies the dequantised values in torch."""

    def __init__(self, weight: Tensor, bias: Tensor | None, codes: torch.dtype, block: tuple[int, int]) -> None:
        super().__init__()
        self.weight, self.bias, self.codes, self.block = weight, bias, codes, block

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        q, scale = opmux.quantize(rows, dtype=self.codes, block=self.block, backend="reference")
        values = opmux.dequantize(q, scale, out_dtype=torch.float32, backend="reference")
        return functional.linear(values, self.weight, self.bias).to(x.dtype).view(*x.shape[:-1], -1)


def dequantised(plain: nn.Module, codes: Any = "fp8", activations: str = "token", weights: str = "channel") -> Any:
    """The reference of a quantised model: plain torch on dequantised values."""
    made = copy.deepcopy(plain)
    block = {"token": (1, -1), "block": (1, 128)}[activations]
    for path, linear in linears(made):
        stored = QuantizedLinear.from_linear(linear, codes=codes, activations=activations, weights=weights)
        values = stored.dequantized()
        bias = None if values.bias is None else values.bias.detach()
        put(made, path, Dequantised(values.weight.detach(), bias, stored.weight.dtype, block))
    return made


def calls_of(of: Any, run: Any) -> dict[str, int]:
    """How often a model calls each op that quantises or multiplies codes."""
    with opmux.trace() as traced:
        run(of)
    found: dict[str, int] = {}
    for row in traced.rows:
        if "quantize" in row.op or row.op in ("scaled_linear", "silu_mul", "silu_and_mul"):
            found[row.op] = found.get(row.op, 0) + row.calls
    return found
