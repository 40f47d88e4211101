"""Error bounds: how far a correct kernel may lie from the exact result. This is the only file that derives them.

**The model.** A correct kernel computes in the accumulation dtype, whose unit roundoff is ``u`` (2**-24 for float32,
2**-53 for float64), and rounds its result once to the output's dtype. So, with ``ulp(out)`` the spacing of the
output's dtype at the exact result,

    |error|  <=  1/2 ulp(out)  +  u * magnitude  +  2**-8 * noise

where *magnitude* is what the family's formula gives for ``|A| * |B|``: the formula evaluated with every operand (in
8-bit formats dequantised) replaced by its absolute value, each term multiplied by the number of roundings it goes
through. It is computed in float64 from the operands of the call, for each element of each output: an element of a
sum that cancels may be wrong by more of its own size than one that does not, and no constant tolerance says that.

**Sums.** A sum of n terms goes through n roundings in the worst order. Roundings are as often up as down: the error of
a sequential sum of terms of one sign has the standard deviation ``0.24 u sqrt(n) sum|t|``, of mixed signs ``0.4 u
sum|t|``. `roundings` therefore counts ``4 + sqrt(n)``: about four standard deviations of the worst order, so that every
order passes, and half as many bits as a sum in bfloat16 would need. Where the case repeats one entry along a dim that
is summed over (the expanded view), all terms round the same way, and it counts ``4 + n``.

**Probabilities in bfloat16.** Attention kernels multiply the probabilities P with V on matrix units that take 16-bit
operands, so for 16-bit inputs P (and in the backward dS) may be rounded to bfloat16. The roundings of the terms of one
sum are independent and each has a standard deviation of ``0.41 * 2**-8`` of its term: the sum's is ``0.41 * 2**-8 *
sqrt(P**2 @ V**2)``. For float16 inputs they may be float16, whose subnormals are coarser. *noise* is 2.5 of that root
(six standard deviations), plus the result itself once, for rows whose probabilities are all equal and round alike.

**Three bounds.** For the worst element, as above. For the worst row (of the last dim) and for the whole output (in the
Frobenius norm) the norms of the three terms are added, the first and the third taken for what they are, averages: a
rounding error's mean square is 1/12 ulp**2 (1/8 where results lie on a grid of half an ulp) and not 1/4, and noise
averages out. Rows and outputs that are rounded twice, or by a few codes everywhere, fail these two.

**Float64.** The oracle is no better than the kernel, so both terms count twice.

**Quantised outputs** are compared by code: at most one code apart, on at most max(1, 0.1 %) of the elements; scales
within 2 ulp. Where the exact quotient lies within its own roundings of a tie, both codes count as exact: 16-bit values
lie on ties too often for a fixed fraction.

**Ops that have no derivation here** (a plugin's own) are bounded by the perturbation of their oracle: a backward-stable
kernel gives the exact result of inputs that differ by a few u. A plugin can give a derivation with `derives`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from opmux.callpath.op import OPS, Op
from opmux.testing.scores import Scores, attended, by_sequence, per_head

ROUNDED_PROBABILITIES = 2.0**-8
"""Unit roundoff of bfloat16."""

CODES_APART = 1
CODES_FRACTION = 1e-3
SCALE_ULPS = 2.0


@dataclass(frozen=True)
class Allowance:
    """What an output may err by beside the rounding to its own dtype.

    Attributes:
        magnitude: in units of the accumulation dtype's unit roundoff; float64, of the output's shape.
        noise: in units of bfloat16's unit roundoff; None where nothing may be rounded to it.
        ulps: in ulp of the output, beside its own rounding.
    """

    magnitude: Tensor | float = 0.0
    noise: Tensor | None = None
    ulps: float = 0.0


Derivation = Callable[["Given"], Sequence[Allowance]]

DERIVATIONS: dict[str, Derivation] = {}
"""op -> the function that derives the allowance of each of its outputs."""


def derives(*ops: str) -> Callable[[Derivation], Derivation]:
    """Register the derivation of ops: a function from `Given` to an `Allowance` for each output, in order."""

    def register(function: Derivation) -> Derivation:
        DERIVATIONS.update(dict.fromkeys(ops, function))
        return function

    return register


@dataclass(frozen=True)
class Given:
    """A call as a derivation sees it.

    Attributes:
        tensors: the operands in float64, with 0 for NaN and Inf (a result that they reach is not finite either).
        options: the options.
        expected: the exact results, with 0 for NaN and Inf.
        sixteen: the inputs are 16-bit, so probabilities may be kept in bfloat16.
        raw: the operands with their NaN and Inf.
        half: the 16-bit inputs are float16, and so may be what is kept.
    """

    op: Op
    tensors: Mapping[str, Any]
    options: Mapping[str, Any]
    expected: tuple[Tensor, ...]
    sixteen: bool
    raw: Mapping[str, Any]
    half: bool = False

    def __getitem__(self, name: str) -> Tensor:
        value: Tensor = self.tensors[name]
        return value

    def wants(self, place: int) -> bool:
        """Whether the output is computed at all."""
        mask = self.options.get("output_mask")
        return mask is None or mask[place]

    def kept(self, values: Tensor) -> Tensor:
        """Magnitudes of what may be kept in 16 bits.

        Below 2**-16 a float16 is off by more than bfloat16's half step: by half of its own subnormal step, 2**-25,
        which is bfloat16's half step of 2**-16. (0 is exact.)
        """
        sizes = values.abs()
        return torch.where(sizes > 0, sizes.clamp_min(2.0**-16), sizes) if self.half else sizes

    def noise(self, root: Tensor, result: Tensor) -> Tensor | None:
        """The noise of products with rounded probabilities, given the root of the sum of their squares."""
        return 2.5 * root + result.abs() if self.sixteen else None


_repeated = ContextVar("repeated", default=False)
"""Whether the operands of the call at hand repeat one entry: the roundings of a sum's terms are then all alike."""


def roundings(terms: int) -> float:
    """How many unit roundoffs the error of a sum is allowed, in any order of summation."""
    return 4.0 + (terms if _repeated.get() else math.sqrt(terms))


def unit_roundoff(dtypes: Sequence[torch.dtype]) -> float:
    """That of the accumulation dtype for operands of these dtypes."""
    return 2.0**-53 if torch.float64 in dtypes else 2.0**-24


def allowances(
    op: Op,
    tensors: Mapping[str, Any],
    dtypes: Mapping[str, torch.dtype],
    options: Mapping[str, Any],
    expected: Sequence[Tensor],
    repeated: bool = False,
) -> tuple[Allowance, ...]:
    """The allowance of each output of a call.

    Args:
        op: the op.
        tensors: the operands in float64, by name.
        dtypes: their dtypes before they were upcast.
        options: the options.
        expected: the exact results, in float64.
        repeated: tensors repeat one entry along their first dim.
    """
    meant = OPS[op.in_place_of] if op.in_place_of is not None else op
    real = [d for d in dtypes.values() if d.is_floating_point]
    sixteen = real[0].itemsize <= 2 if real else False
    clean = {name: _finite(value) for name, value in tensors.items()}
    half = sixteen and real[0] == torch.float16
    given = Given(meant, clean, options, tuple(_finite(e) for e in expected), sixteen, tensors, half)
    derive = DERIVATIONS.get(meant.name, _by_perturbation)
    token = _repeated.set(repeated)
    try:
        return tuple(derive(given))
    finally:
        _repeated.reset(token)


def _finite(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype == torch.float64:
        return value.nan_to_num(0.0, 0.0, 0.0)
    return value


def _rows(x: Tensor) -> Tensor:
    """Sums of rows of the last dim, kept as a dim of one."""
    return x.sum(-1, keepdim=True)


def _mean(x: Tensor) -> Tensor:
    return _rows(x) / max(1, x.shape[-1])


# Norms. The statistics of a row are sums of `hidden` terms of one sign; every element of the row inherits their error.


@dataclass(frozen=True)
class _Normed:
    """A normed row: n = centred * r, and the roundings that n and r carry, relative to ``spread`` and to r."""

    n: Tensor
    spread: Tensor
    r: Tensor
    relative: Tensor


def _normed(x: Tensor, eps: float, centre: bool) -> _Normed:
    """``spread`` is |n|, for a layer norm with the mean of |x| beside it: the mean's error shifts the whole row.

    The variance's error is relative to the mean square, so that one pass over E[x**2] - E[x]**2 passes as well. An
    error of the mean square counts half in its root, and less where eps outweighs it.
    """
    sums = roundings(x.shape[-1])
    mean = _mean(x) if centre else torch.zeros_like(_mean(x))
    centred = x - mean
    square, variance = _mean(x.square()), _mean(centred.square())
    r = torch.rsqrt(variance + eps)
    relative = 0.5 * (sums + 2) * square / (variance + eps) + 3
    spread = centred.abs() + (_mean(x.abs()) * sums if centre else 0.0)
    return _Normed(centred * r, spread * r, r, relative)


def _norm_allowance(given: Given, x: Tensor, centre: bool) -> Allowance:
    gain = _gain(given)
    normed = _normed(x, given.options["eps"], centre)
    magnitude = gain.abs() * (normed.n.abs() * (normed.relative + 3) + normed.spread)
    if given.tensors.get("bias") is not None:
        magnitude = magnitude + given["bias"].abs()
    return Allowance(magnitude)


def _gain(given: Given) -> Tensor:
    offset: float = given.options.get("weight_offset", 0.0)
    return given["weight"] + offset


@derives("rms_norm")
def _rms_norm(given: Given) -> list[Allowance]:
    return [_norm_allowance(given, given["x"], centre=False)]


@derives("layer_norm")
def _layer_norm(given: Given) -> list[Allowance]:
    return [_norm_allowance(given, given["x"], centre=True)]


@derives("add_rms_norm", "add_layer_norm")
def _add_norm(given: Given) -> list[Allowance]:
    """The sum of two operands is one addition, exact or rounded once before the rounding to the output."""
    total = given["x"] + given["residual"]
    centre = given.op.name == "add_layer_norm"
    return [_norm_allowance(given, total, centre), Allowance(total.abs())]


@derives("rms_norm_backward", "layer_norm_backward", "add_rms_norm_backward", "add_layer_norm_backward")
def _norm_backward(given: Given) -> list[Allowance]:
    """grad_x = r (g - [mean(g)] - n mean(g n)) [+ grad_residual_out]; the others are sums of grad_y n and of grad_y."""
    centre, added = "layer_norm" in given.op.name, given.op.name.startswith("add")
    grad_y = given["grad_y"]
    x = given["residual_out" if added else "x"]
    sums, normed = roundings(x.shape[-1]), _normed(x, given.options["eps"], centre)
    size = normed.spread * (normed.relative + 1)  # |n| and its error, in u
    g = (grad_y * _gain(given)).abs()
    g_n = g * normed.spread
    inner = g * (normed.relative + 4)
    inner = inner + normed.spread * _mean(g_n) * (sums + 4) + size * _mean(g_n) + normed.spread * _mean(g * size)
    if centre:
        inner = inner + _mean(g) * (sums + normed.relative + 4)
    grad_x = normed.r * inner
    if added:
        grad_x = grad_x + given["grad_residual_out"].abs()
    tokens = roundings(math.prod(x.shape[:-1]))
    over_tokens = tuple(range(x.dim() - 1))
    found = [Allowance(grad_x)] * (2 if added else 1)
    by_token = grad_y.abs() * (size + normed.spread * (tokens + 2))
    found.append(Allowance(by_token.sum(over_tokens) if over_tokens else by_token))
    if centre:
        sized = grad_y.abs() * tokens
        found.append(Allowance(sized.sum(over_tokens) if over_tokens else sized))
    return found


# Gated activations. An activation's roundings are relative to its terms; the exponential's argument carries its own.

_ACTIVATION = 8.0  # exp, a reciprocal, a few products: two ulp each in the usual libraries


@derives("silu_and_mul", "silu_mul", "gelu_and_mul", "gelu_mul")
def _gated(given: Given) -> list[Allowance]:
    gate, up = _gate_and_up(given)
    value, _ = _activation(given, gate)
    return [Allowance(value * up.abs())]


@derives("silu_and_mul_backward", "silu_mul_backward", "gelu_and_mul_backward", "gelu_mul_backward")
def _gated_backward(given: Given) -> list[Allowance]:
    gate, up = _gate_and_up(given)
    value, slope = _activation(given, gate)
    grad = given["grad_out"].abs()
    grad_gate, grad_up = grad * up.abs() * slope, grad * value
    if "x" in given.tensors:
        return [Allowance(torch.cat((grad_gate, grad_up), -1))]
    return [Allowance(grad_gate), Allowance(grad_up)]


def _gate_and_up(given: Given) -> tuple[Tensor, Tensor]:
    if "x" in given.tensors:
        gate, up = given["x"].chunk(2, -1)
        return gate, up
    return given["gate"], given["up"]


def _activation(given: Given, gate: Tensor) -> tuple[Tensor, Tensor]:
    """The magnitudes of the activation and of its slope, with their roundings."""
    size = gate.abs()
    if given.op.name.startswith("silu"):
        share = torch.sigmoid(gate)
        # The rounding of exp's argument g is g * u, which sigmoid passes on as g * (1 - sigmoid).
        rounds = _ACTIVATION + 2 * size * (1 - share)
        # 1 - sigmoid cancels: its error is that of 1.
        return size * share * rounds, share * ((1 + 2 * size * (1 - share)) * (rounds + 2) + 4 * size)
    if given.options["approximate"] == "tanh":
        inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
        inner_slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * gate.square())
        # (1 + tanh) / 2 as it is written cancels below zero: its error is that of 1, not of the small difference.
        share = 0.5 * (1 + torch.tanh(inner).abs())
        swing = 0.5 * (1 - torch.tanh(inner).square())
        rounds = share + 4 * swing * inner.abs()
        turn = size * inner_slope * (4 * share + _ACTIVATION * swing * (1 + inner.abs()))
        return _ACTIVATION * size * rounds, _ACTIVATION * rounds + turn
    share = 0.5 * (1 + torch.erf(gate / math.sqrt(2)).abs())
    density = torch.exp(-0.5 * gate.square()) / math.sqrt(2 * math.pi)
    rounds = share + size * density
    return _ACTIVATION * size * rounds, _ACTIVATION * (rounds + size * density * (1 + gate.square()))


# Rotary embedding: two products and a sum. Dims that are not rotated are copies and have no allowance.


@derives("apply_rope")
def _rope(given: Given) -> list[Allowance]:
    return [_rotation(given, given[name]) for name in ("q", "k")]


@derives("apply_rope_backward")
def _rope_backward(given: Given) -> list[Allowance]:
    return [_rotation(given, given[name]) for name in ("grad_q_out", "grad_k_out")]


def _rotation(given: Given, x: Tensor) -> Allowance:
    cos, sin = given["cos"].abs(), given["sin"].abs()
    positions = given.tensors.get("positions")
    rows = slice(0, x.shape[-3]) if positions is None else positions.to(torch.int64)
    cos, sin = cos[rows].unsqueeze(-2), sin[rows].unsqueeze(-2)
    half = cos.shape[-1]
    rotary, rest = x[..., : 2 * half].abs(), torch.zeros_like(x[..., 2 * half :])
    if given.options["interleaved"]:
        first, second = rotary[..., 0::2], rotary[..., 1::2]
    else:
        first, second = rotary.chunk(2, -1)
    turned = (first * cos + second * sin, second * cos + first * sin)
    size = torch.stack(turned, -1).flatten(-2) if given.options["interleaved"] else torch.cat(turned, -1)
    return Allowance(torch.cat((2 * size, rest), -1))


# Matrix products: |A| @ |B|.


@derives("linear")
def _linear(given: Given) -> list[Allowance]:
    x, w = given["x"].abs(), given["w"].abs()
    magnitude = (x @ w.T) * roundings(x.shape[-1])
    if given.tensors.get("bias") is not None:
        magnitude = magnitude + given["bias"].abs()
    return [Allowance(magnitude)]


@derives("linear_backward")
def _linear_backward(given: Given) -> list[Allowance]:
    grad, x, w = given["grad_out"].abs(), given["x"].abs(), given["w"].abs()
    tokens, (n, k) = math.prod(x.shape[:-1]), w.shape
    flat = grad.reshape(tokens, n)
    grad_w = flat.T @ x.reshape(tokens, k)
    return [
        Allowance((grad @ w) * roundings(n)),
        Allowance(grad_w * roundings(tokens)),
        Allowance(flat.sum(0) * roundings(tokens)),
    ]


# Copies and codes.


@derives("write_kv_cache")
def _write(given: Given) -> list[Allowance]:
    """A conversion, of float64 perhaps by way of float32."""
    return [Allowance(e.abs()) for e in given.expected]


@derives("quantize")
def _quantize(given: Given) -> list[Allowance]:
    """A code may be rounded from what its value times a reciprocal of the scale gives: three roundings."""
    return [Allowance(4 * given.expected[0].abs()), Allowance(ulps=SCALE_ULPS)]


# Attention. With s the scores, P = exp(s - lse) and |s| etc. the magnitudes:
#   error of a score    e_s  = roundings(head_dim) |q|.|k| scale + 2 |s|          (the cap passes on its slope)
#   of a probability    e_P  = P (e_s + 2 |s - lse| + 4 + the same, averaged over the row, for the lse)
#   of an output        e_P @ |V| + P @ |V| roundings(seq_k)
# and the noise of P rounded to bfloat16.


@derives("attention", "attention_lse")
def _attention(given: Given) -> list[Allowance]:
    found = [
        _attention_terms(given, Scores.of(given.tensors, given.options, batch, heads))
        for batch, heads in per_head(given["q"], given["k"])
    ]
    return _assembled(given, found)


@derives("attention_varlen", "attention_varlen_lse", "paged_attention", "paged_attention_lse")
def _attention_sequences(given: Given) -> list[Allowance]:
    out = given.expected[0]
    magnitude, root = torch.zeros_like(out), torch.zeros_like(out)
    lse = out.new_zeros((out.shape[1], out.shape[0]))
    for tokens, _, tensors in by_sequence(given.tensors):
        expected = (out[None, tokens], *(e[None, :, tokens] for e in given.expected[1:]))
        one = Given(given.op, tensors, given.options, expected, given.sixteen, tensors, given.half)
        parts = _attention(one)
        magnitude[tokens] = _tensor(parts[0].magnitude)[0]
        if parts[0].noise is not None:
            root[tokens] = parts[0].noise[0]
        if len(parts) > 1:
            lse[:, tokens] = _tensor(parts[1].magnitude)[0]
    found = [Allowance(magnitude, root if given.sixteen else None)]
    return found + [Allowance(lse)] * (len(given.expected) - 1)


def _tensor(value: Tensor | float) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)


def _attention_terms(given: Given, scores: Scores) -> tuple[Tensor, Tensor, Tensor]:
    """Of some heads: the output's magnitude, the root of its noise, the lse's magnitude."""
    keys = roundings(scores.p.shape[-1])
    error = scores.p * scores.error
    common = _rows(error)
    size = scores.v.abs()
    weighted = scores.p @ size
    magnitude = error @ size + weighted * (keys + 4) + weighted * common
    lse = common + keys + 2 * scores.lse.abs() + 4
    return magnitude, (given.kept(scores.p).square() @ size.square()).sqrt(), lse.squeeze(-1)


def _assembled(given: Given, parts: Sequence[tuple[Tensor, Tensor, Tensor]]) -> list[Allowance]:
    """Parts of some heads each, ``(heads, seq, dim)``, as allowances in the outputs' shapes."""
    out = given.expected[0]
    batch, seq, heads, dim = out.shape

    def joined(place: int, last: int) -> Tensor:
        if not parts:
            return out.new_zeros((batch, heads, seq, last))
        return torch.cat([p[place].reshape(-1) for p in parts]).reshape(batch, heads, seq, last)

    magnitude, root = (joined(place, dim).transpose(1, 2) for place in (0, 1))
    found = [Allowance(magnitude, given.noise(root, out))]
    if len(given.expected) > 1:
        found.append(Allowance(joined(2, 1).squeeze(-1)))
    return found


# Its backward: dP = dO.V, shift = dlse - dO.out, dS = P (dP + shift), each with its error; then products as above.


@derives("attention_backward")
def _attention_backward(given: Given) -> list[Allowance]:
    q, k, v = given["q"], given["k"], given["v"]
    sizes, roots = ([torch.zeros_like(t) for t in (q, k, v)] for _ in range(2))
    sinks = given.tensors.get("sinks")
    of_sinks = None if sinks is None else torch.zeros_like(sinks)
    groups = q.shape[2] // max(1, k.shape[2])
    queries = roundings(q.shape[1] * groups)
    for batch, heads in per_head(q, k):
        scores = Scores.of(given.tensors, given.options, batch, heads, saved=True)
        one = attended(given.tensors, batch, heads, groups)
        grad, out = one["grad_out"], one["out"]
        shift = one["grad_lse"] - _rows(grad * out)
        width = roundings(v.shape[-1])
        e_shift = width * _rows((grad * out).abs()) + one["grad_lse"].abs()
        grad_p = grad @ scores.v.mT
        ds = scores.p * (grad_p + shift)
        e_ds = scores.p * (width * (grad.abs() @ scores.v.abs().mT) + e_shift)
        e_ds = (e_ds + scores.p * (grad_p.abs() + shift.abs()) * (scores.error + 4)) * scores.slope
        e_ds = e_ds + ds.abs() * scores.slope_error
        ds = ds * scores.slope
        keys, kv = roundings(ds.shape[-1]), slice(heads.start // groups, -(-heads.stop // groups))
        sizes[0][batch, :, heads] = (
            scores.scale * (e_ds @ scores.k.abs() + keys * (ds.abs() @ scores.k.abs()))
        ).transpose(0, 1)
        kept, kept_p = given.kept(ds).square(), given.kept(scores.p).square()
        roots[0][batch, :, heads] = (scores.scale**2 * (kept @ scores.k.square())).transpose(0, 1)
        sizes[1][batch, :, kv] += _grouped(
            scores.scale * ((e_ds + queries * ds.abs()).mT @ scores.q.abs()), groups
        ).transpose(0, 1)
        roots[1][batch, :, kv] += _grouped(scores.scale**2 * (kept.mT @ scores.q.square()), groups).transpose(0, 1)
        sizes[2][batch, :, kv] += _grouped((scores.p * (scores.error + queries + 4)).mT @ grad.abs(), groups).transpose(
            0, 1
        )
        roots[2][batch, :, kv] += _grouped(kept_p.mT @ grad.square(), groups).transpose(0, 1)
        if of_sinks is not None:
            arguments = scores.lse.abs() + one["sinks"].abs()
            sink_rounds = e_shift + shift.abs() * (2 * arguments + 8)
            by_row = scores.sink_p * (sink_rounds + shift.abs() * roundings(q.shape[0] * q.shape[1]))
            of_sinks[heads] += by_row.sum((-2, -1))
    expected = given.expected
    found = [
        Allowance(s, given.noise(r.sqrt(), e) if given.wants(i) else None)
        for i, (s, r, e) in enumerate(zip(sizes, roots, expected, strict=False))
    ]
    return [*found, Allowance(0.0 if of_sinks is None else of_sinks)]


def _grouped(x: Tensor, groups: int) -> Tensor:
    """Sums over the query heads that share a kv head: ``(heads, seq, dim)`` to ``(kv_heads, seq, dim)``."""
    return x.reshape(x.shape[0] // groups, groups, *x.shape[1:]).sum(1)


@derives("attention_varlen_backward")
def _attention_varlen_backward(given: Given) -> list[Allowance]:
    names = ("q", "k", "v")
    sizes = [torch.zeros_like(given[n]) for n in names]
    noises = [torch.zeros_like(given[n]) for n in names]
    sinks = given.tensors.get("sinks")
    of_sinks = None if sinks is None else torch.zeros_like(sinks)
    for of_q, of_k, tensors in by_sequence(given.tensors):
        places = (of_q, of_k, of_k)
        expected = tuple(
            e[None, p] if given.wants(i) else e for i, (e, p) in enumerate(zip(given.expected[:3], places, strict=True))
        )
        one = Given(
            given.op, tensors, given.options, (*expected, given.expected[3]), given.sixteen, tensors, given.half
        )
        parts = _attention_backward(one)
        for i, place in enumerate(places):
            sizes[i][place] = _tensor(parts[i].magnitude)[0]
            noise = parts[i].noise
            if noise is not None:
                noises[i][place] = noise[0]
        if of_sinks is not None:
            of_sinks += _tensor(parts[3].magnitude)
    found = [Allowance(s, n if given.sixteen else None) for s, n in zip(sizes, noises, strict=True)]
    return [*found, Allowance(0.0 if of_sinks is None else of_sinks)]


# Merging: weights exp(lse_x - lse), whose argument's rounding is relative to the larger lse.


@derives("merge_attention_states")
def _merge(given: Given) -> list[Allowance]:
    out, lse, sides = _merged(given)
    magnitude = torch.zeros_like(out)
    for side, weight, rounds in sides:
        magnitude = magnitude + rounds * weight * side.abs()
    return [Allowance(magnitude), Allowance(2 * lse.abs() + 8)]


@derives("merge_attention_states_backward")
def _merge_backward(given: Given) -> list[Allowance]:
    """d out_x = w_x d out; d lse_x = w_x (d out . (out_x - out) + d lse)."""
    out, _, sides = _merged(given)
    grad, grad_lse = given["grad_out"].abs(), given["grad_lse"].abs()
    found = []
    for side, weight, rounds in sides:
        found.append(Allowance(rounds * weight * grad))
        inner = _rows(grad * (side.abs() + out.abs())) * (roundings(out.shape[-1]) + 4)
        inner = (inner + grad_lse.mT.unsqueeze(-1)) * weight * rounds
        found.append(Allowance(inner.squeeze(-1).mT))
    return found


def _merged(given: Given) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor, Tensor]]]:
    """The merged output's magnitude, the merged lse, and for each side its output, weight and roundings."""
    lses = [given.raw[name].mT.unsqueeze(-1) for name in ("lse_a", "lse_b")]
    lse = torch.logaddexp(*lses)
    top = lse.nan_to_num(0.0, 0.0, 0.0)
    sides = []
    for name, one in zip(("out_a", "out_b"), lses, strict=True):
        weight = torch.exp(one - top).nan_to_num(0.0)
        sides.append((given[name], weight, 8 + 2 * (one - top).nan_to_num(0.0, 0.0, 0.0).abs() + 2 * top.abs()))
    out = sum((weight * side.abs() for side, weight, _ in sides), torch.zeros_like(sides[0][0]))
    return out, top.squeeze(-1).mT, sides


# Anything else.

_TRIALS = 4
_STEP = 2.0**-20


def _by_perturbation(given: Given) -> list[Allowance]:
    """The exact results of inputs that are perturbed by a relative ``step``, in units of it.

    Each element counts for what its own perturbation gave and for the root mean square of its row, as a difference may
    be small by chance.
    """
    generator = torch.Generator().manual_seed(0)
    found = [torch.zeros_like(e, dtype=torch.float64) for e in given.expected]

    def perturbed(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dtype != torch.float64:
            return value
        signs = torch.rand(value.shape, generator=generator, dtype=torch.float64).to(value.device) * 2 - 1
        return value * (1 + _STEP * signs)

    def results(tensors: Mapping[str, Any]) -> tuple[Tensor, ...]:
        arguments = [tensors[t.name] for t in given.op.signature.tensors]
        if given.op.signature.mutates:
            arguments = [a.clone() if isinstance(a, Tensor) else a for a in arguments]
            given.op.reference(*arguments, **given.options)
            named = given.op.names(tuple(arguments))
            return tuple(named[t.name] for t in given.op.signature.tensors if t.name in given.op.signature.mutates)
        made = given.op.reference(*arguments, **given.options)
        return made if isinstance(made, tuple) else (made,)

    exact = results(given.tensors)
    for _ in range(_TRIALS):
        moved = results({name: perturbed(value) for name, value in given.tensors.items()})
        for i, (a, b) in enumerate(zip(moved, exact, strict=True)):
            if a.dtype == torch.float64:
                found[i] = torch.maximum(found[i], ((a - b) / _STEP).nan_to_num(0.0, 0.0, 0.0).abs())
    longest = max((n for t in given.tensors.values() if isinstance(t, Tensor) for n in t.shape), default=1)
    rounds = 2 * roundings(longest)
    return [
        Allowance(rounds * (f + _mean(f.square()).sqrt() + e.to(torch.float64).abs()) if f.dim() else rounds * f)
        for f, e in zip(found, given.expected, strict=True)
    ]
