"""One small valid call of every op, and a small model made of ops."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import opmux
from opmux.callpath.op import OPS, Op
from opmux.signatures.signature import AHEAD, REFUSED
from opmux.signatures.validation import bind_dims

Arguments = tuple[tuple[Tensor | None, ...], dict[str, Any]]


@dataclass(frozen=True)
class Sample:
    """A call of an op: ``sample()`` makes it."""

    op: Op
    tensors: tuple[Tensor | None, ...]
    options: dict[str, Any]

    def __call__(self, **more: Any) -> Any:
        return self.op.public(*self.tensors, **self.options, **more)

    def run(self, *tensors: Tensor | None, **more: Any) -> Any:
        """The same call on other tensors."""
        return self.op.public(*tensors, **self.options, **more)

    def with_tensors(self, change: Callable[[Tensor], Tensor]) -> "Sample":
        """The same call with every tensor changed."""
        return replace(self, tensors=tuple(None if t is None else change(t) for t in self.tensors))

    def copy(self) -> "Sample":
        """The same call on tensors of its own."""
        return self.with_tensors(lambda t: t.detach().clone().requires_grad_(t.requires_grad))

    def requiring(self, *places: int) -> "Sample":
        """The same call on copies, of which those at ``places`` require a gradient."""
        tensors = [None if t is None else t.detach().clone() for t in self.tensors]
        for place in places:
            tensor = tensors[place]
            assert tensor is not None
            tensor.requires_grad_()
        return replace(self, tensors=tuple(tensors))

    @property
    def registered(self) -> Any:
        """``torch.ops.opmux.X.default``."""
        return getattr(torch.ops.opmux, self.op.name).default

    @property
    def differentiable(self) -> tuple[int, ...]:
        """The places of the tensors that are given and have a gradient."""
        return tuple(
            i
            for i, (argument, tensor) in enumerate(zip(self.op.signature.tensors, self.tensors, strict=True))
            if tensor is not None and argument.name in gradients_of(self.op)
        )


def gradients_of(op: Op) -> tuple[str, ...]:
    """The names of the arguments that an op has gradients of."""
    if op.gradient == REFUSED:
        return ()
    return tuple(o.name.removeprefix("grad_") for o in OPS[op.gradient].signature.outputs)


def outputs(results: Any) -> tuple[Tensor, ...]:
    """The results of a call as a tuple."""
    return () if results is None else results if isinstance(results, tuple) else (results,)


def varying(op: Op, results: Any) -> tuple[Any, ...]:
    """The results of a call that autograd differentiates: not the gradients that a forward computes ahead."""
    return tuple(r for r, o in zip(outputs(results), op.signature.outputs, strict=True) if not o.name.endswith(AHEAD))


def total(results: Any) -> Tensor:
    """A scalar of all results whose gradient is not the same everywhere."""
    return sum((r * torch.linspace(0.5, 1.5, r.numel(), device=r.device).view(r.shape)).sum() for r in outputs(results))  # type: ignore[return-value]


def curved(results: Any) -> Tensor:
    """A scalar of all results whose gradient depends on them, so that there is a second one even of a linear op."""
    return total(tuple(r.square() for r in outputs(results)))


def gradients(call: Sample, of: tuple[int, ...]) -> list[Tensor]:
    """The gradients of `total` of a call, for copies of its tensors."""
    recorded = call.requiring(*of)
    return list(torch.autograd.grad(total(recorded()), [recorded.tensors[place] for place in of]))  # type: ignore[misc]


class _Maker:
    def __init__(self, dtype: torch.dtype, device: str) -> None:
        self.dtype, self.device = dtype, device
        self.generator = torch.Generator().manual_seed(0)

    def real(self, *sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=self.generator, dtype=torch.float64).to(self.device, self.dtype)

    def scale(self, *sizes: int) -> Tensor:
        return (torch.rand(*sizes, generator=self.generator) + 0.5).to(self.device)

    def codes(self, *sizes: int) -> Tensor:
        return (32 * torch.randn(*sizes, generator=self.generator)).to(torch.float8_e4m3fn).to(self.device)

    def ints(self, values: Any, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self.device)

    def rope(self) -> tuple[Tensor, Tensor]:
        cos, sin = opmux.rope.tables(opmux.rope.default(head_dim=8, rope_theta=10000.0)[0], 32)
        return cos.to(self.device), sin.to(self.device)

    def classes(self) -> Tensor:
        return self.ints([0, 5, -100, 3, 3], torch.int64)

    def paged(self) -> Arguments:
        tensors = (
            self.real(3, 4, 8),
            self.real(4, 16, 2, 8),
            self.real(4, 16, 2, 8),
            self.ints([0, 1, 3]),
            self.ints([5, 20]),
            self.ints([[1, 3], [2, 0]]),
        )
        return tensors, {"max_seqlen_q": 2, "max_seqlen_k": 32}

    def varlen(self, sinks: bool) -> tuple[Tensor, ...]:
        tensors = (
            self.real(3, 4, 4),
            self.real(5, 2, 4),
            self.real(5, 2, 2),
            self.ints([0, 1, 3]),
            self.ints([0, 2, 5]),
        )
        return (*tensors, self.real(4)) if sinks else tensors


_LENGTHS = {"max_seqlen_q": 2, "max_seqlen_k": 3}
_MAKE: dict[str, Callable[[_Maker], Arguments]] = {
    "rms_norm": lambda m: ((m.real(5, 8), m.real(8)), {"eps": 1e-5}),
    "add_rms_norm": lambda m: ((m.real(5, 8), m.real(5, 8), m.real(8)), {"weight_offset": 1.0}),
    "add_rms_norm_": lambda m: ((m.real(5, 8), m.real(5, 8), m.real(8)), {}),
    "layer_norm": lambda m: ((m.real(5, 8), m.real(8), m.real(8)), {}),
    "add_layer_norm": lambda m: ((m.real(5, 8), m.real(5, 8), m.real(8), m.real(8)), {}),
    "silu_and_mul": lambda m: ((m.real(5, 8),), {}),
    "gelu_and_mul": lambda m: ((m.real(5, 8),), {"approximate": "tanh"}),
    "silu_mul": lambda m: ((m.real(5, 8), m.real(5, 8)), {}),
    "gelu_mul": lambda m: ((m.real(5, 8), m.real(5, 8)), {}),
    "linear": lambda m: ((m.real(5, 8), m.real(3, 8), m.real(3)), {}),
    "apply_rope": lambda m: (
        (m.real(2, 3, 4, 8), m.real(2, 3, 2, 8), *m.rope(), m.ints([[0, 1, 2], [9, 8, 31]])),
        {},
    ),
    "apply_rope_": lambda m: ((m.real(2, 3, 4, 8), m.real(2, 3, 2, 8), *m.rope(), None), {"interleaved": True}),
    "attention": lambda m: (
        (m.real(2, 3, 4, 4), m.real(2, 4, 2, 4), m.real(2, 4, 2, 2), m.real(4)),
        {"causal": True},
    ),
    "attention_lse": lambda m: (
        (m.real(2, 3, 4, 4), m.real(2, 4, 2, 4), m.real(2, 4, 2, 2), None),
        {"window": (1, 1)},
    ),
    "attention_varlen": lambda m: ((*m.varlen(sinks=False), None), {**_LENGTHS}),
    "attention_varlen_lse": lambda m: (m.varlen(sinks=True), {**_LENGTHS, "softcap": 3.0}),
    "merge_attention_states": lambda m: (
        (m.real(2, 3, 2, 4), m.real(2, 2, 3), m.real(2, 3, 2, 4), m.real(2, 2, 3)),
        {},
    ),
    "paged_attention": lambda m: ((*m.paged()[0], m.real(4), None, None, None), m.paged()[1]),
    "paged_attention_lse": lambda m: ((*m.paged()[0], None, None, None, None), m.paged()[1]),
    "write_kv_cache": lambda m: (
        (m.real(3, 2, 8), m.real(3, 2, 8), *m.paged()[0][1:3], m.ints([1, -1, 20], torch.int64), None, None),
        {},
    ),
    "quantize": lambda m: ((m.real(5, 256),), {"dtype": torch.int8}),
    "scaled_linear": lambda m: (
        (m.codes(5, 256), m.codes(3, 256), m.scale(5, 2), m.scale(1, 2), m.real(3)),
        {"out_dtype": torch.float32},
    ),
    "scaled_linear_accumulate": lambda m: (
        (m.scale(5, 3), m.codes(5, 256), m.codes(3, 256), m.scale(5, 1), m.scale(3, 1)),
        {},
    ),
    "grouped_linear": lambda m: ((m.real(5, 8), m.real(3, 4, 8), m.ints([0, 2, 2, 5]), None), {}),
    "grouped_weight_grad": lambda m: (
        (m.scale(3, 4, 8), m.real(5, 4), m.real(5, 8), m.ints([0, 3, 3, 5]), m.ints([2, 0, 1])),
        {},
    ),
    "masked_grouped_linear": lambda m: ((m.real(3, 2, 8), m.real(3, 4, 8), m.ints([2, 2, 2])), {"expected_m": 2}),
    "scaled_grouped_linear": lambda m: (
        (m.codes(5, 256), m.codes(3, 4, 256), m.ints([0, 2, 2, 5]), m.scale(5, 2), m.scale(3, 1, 2), None),
        {"out_dtype": torch.float32},
    ),
    "scaled_grouped_weight_grad": lambda m: (
        (
            m.scale(3, 4, 8),
            m.codes(256, 4),
            m.codes(256, 8),
            m.ints([0, 130, 130, 256]),
            m.scale(2, 4),
            m.scale(2, 8),
            m.ints([129, 0, 1]),
        ),
        {},
    ),
    "scaled_masked_grouped_linear": lambda m: (
        (m.codes(3, 2, 256), m.codes(3, 4, 256), m.ints([2, 2, 2]), m.scale(3, 2, 1), m.scale(3, 4, 1)),
        {"expected_m": 1, "out_dtype": torch.float32},
    ),
    "static_quantize": lambda m: ((m.real(5, 256), m.scale(5, 2)), {"dtype": torch.int8}),
    "dequantize": lambda m: ((m.codes(5, 256), m.scale(5, 2)), {"out_dtype": torch.float32}),
    "convert_scale": lambda m: ((m.scale(5, 2),), {"dtype": torch.float32}),
    "pack_scale": lambda m: ((m.scale(5, 6),), {}),
    "unpack_scale": lambda m: ((m.ints([[1, 2], [3, 4]]),), {"k_blocks": 6, "dtype": torch.float32}),
    "convert_fp8": lambda m: ((m.codes(5, 256), m.scale(5, 2)), {"dtype": torch.float8_e4m3fnuz}),
    "rms_norm_quantize": lambda m: ((m.real(5, 8), m.real(8)), {"dtype": torch.int8}),
    "add_rms_norm_quantize": lambda m: ((m.real(5, 8), m.real(5, 8), m.real(8)), {"dtype": torch.int8}),
    "silu_and_mul_quantize": lambda m: ((m.real(5, 8),), {"dtype": torch.int8}),
    "cross_entropy": lambda m: ((m.real(5, 8), m.classes()), {"label_smoothing": 0.1}),
    "cross_entropy_lse": lambda m: ((m.real(5, 8), m.classes()), {"reduction": "none", "softcap": 2.0}),
    "fused_linear_cross_entropy": lambda m: ((m.real(5, 8), m.real(6, 8), m.classes()), {"z_loss": 0.01}),
    "fused_linear_cross_entropy_gradients": lambda m: ((m.real(5, 8), m.real(6, 8), m.classes()), {"reduction": "sum"}),
}
_FORWARD_OF = {  # the one to make arguments from, where two ops share a backward op
    "attention_backward": "attention_lse",
    "attention_varlen_backward": "attention_varlen_lse",
    "cross_entropy_backward": "cross_entropy_lse",
    "fused_linear_cross_entropy_backward": "fused_linear_cross_entropy_gradients",
}


def sample(name: str, dtype: torch.dtype = torch.float64, device: str = "cpu") -> Sample:
    """A small valid call of an op, on tensors of its own."""
    op = OPS[name]
    if not op.is_backward:
        tensors, options = _MAKE[name](_Maker(dtype, device))
        return Sample(op, tensors, options)
    forward = _FORWARD_OF.get(name) or next(o.name for o in OPS.values() if o.gradient == name)
    call = sample(forward, dtype, device)
    named: dict[str, Any] = call.op.names(call.tensors)
    results = outputs(call.op.reference(*call.tensors, **call.options))
    filled = {o.name: o.default for o in call.op.signature.options} | call.options
    dims = bind_dims(call.op.signature, named, filled)
    for output, result in zip(call.op.signature.outputs, results, strict=True):
        named[output.name] = result
        grad = torch.linspace(-1, 1, result.numel()).to(result).view(result.shape)
        named[f"grad_{output.name}"] = grad.expand(output.shape.value(dims, filled)).contiguous()
    accepted = {o.name for o in op.signature.options}
    options = {key: value for key, value in call.options.items() if key in accepted}
    return Sample(op, tuple(named[t.name] for t in op.signature.tensors), options)


ALL = sorted(name for name, op in OPS.items() if op.reference.__module__.startswith("opmux."))
BACKWARD = [n for n in ALL if OPS[n].is_backward]
DIFFERENTIABLE = [n for n in ALL if OPS[n].gradient != REFUSED]
MUTATING = [n for n in ALL if OPS[n].signature.mutates]
FUNCTIONAL = [n for n in ALL if not OPS[n].signature.mutates]
WITH_OUT = [n for n in ALL if OPS[n].signature.takes_out]
INTEGERS = [n for n in ALL if not any(d.is_floating_point for t in OPS[n].signature.tensors for d in t.dtypes)]
"""Ops whose tensors hold integers, of which nothing asks for a gradient."""
REFUSING = [n for n in ALL if OPS[n].gradient == REFUSED and not OPS[n].is_backward]


class Block(nn.Module):
    """A transformer block in which every step that is an op is an op: norm, linear, rope, attention, gate."""

    heads, kv_heads, head_dim = 4, 2, 8

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)

        def weight(*sizes: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*sizes, generator=generator) / 4)

        self.first_norm, self.second_norm = nn.Parameter(torch.ones(hidden)), nn.Parameter(torch.ones(hidden))
        self.to_q = weight(self.heads * self.head_dim, hidden)
        self.to_k = weight(self.kv_heads * self.head_dim, hidden)
        self.to_v = weight(self.kv_heads * self.head_dim, hidden)
        self.to_hidden = weight(hidden, self.heads * self.head_dim)
        self.gate, self.up = weight(2 * hidden, hidden), weight(2 * hidden, hidden)
        self.down = weight(hidden, 2 * hidden)
        cos, sin = opmux.rope.tables(opmux.rope.default(head_dim=self.head_dim, rope_theta=10000.0)[0], 32)
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)
        self.norm = opmux.rms_norm

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, _ = x.shape
        normed = self.norm(x, self.first_norm)
        q = opmux.linear(normed, self.to_q).view(batch, seq, self.heads, self.head_dim)
        k = opmux.linear(normed, self.to_k).view(batch, seq, self.kv_heads, self.head_dim)
        v = opmux.linear(normed, self.to_v).view(batch, seq, self.kv_heads, self.head_dim)
        q, k = opmux.apply_rope(q, k, self.cos, self.sin)
        attended = opmux.attention(q, k, v, causal=True).view(batch, seq, -1)
        normed, x = opmux.add_rms_norm(opmux.linear(attended, self.to_hidden), x, self.second_norm)
        gated = opmux.silu_mul(opmux.linear(normed, self.gate), opmux.linear(normed, self.up))
        return x + opmux.linear(gated, self.down)


BLOCK_OPS = {"rms_norm", "linear", "apply_rope", "attention", "add_rms_norm", "silu_mul"}
