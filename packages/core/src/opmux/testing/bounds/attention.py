"""Bounds of attention: dense, ragged and paged.

With s the scores, P = exp(s - lse) and |s| etc. the magnitudes:

    error of a score    e_s  = roundings(head_dim) |q|.|k| scale + 4 |s|          (the cap passes on its slope)
    of an exponent      e_x  = e_s + 2 |s - lse| + 4, and the same, averaged over the row, for the lse
    of a probability    e_P  = P e_x
    of an output        e_P @ |V| + P @ |V| roundings(seq_k)

and the noise of P rounded to bfloat16.

**Large scores.** Where ``u e_x`` is no small number (scores of 1e4 and more in float32), a first order says nothing: P
is anything between ``exp(x - u e_x)`` and ``exp(x + u e_x)``, so these ends are its bound. A row whose largest score
leads by more than the errors of its scores is as exact as any other, however large they are; where two scores tie to
within their errors, either may win. Probabilities below the smallest normal number may be flushed to zero: a query or a
value of 1e30 shows that.

**Keys that occur several times** (pages shared within a sequence) have equal probabilities, which are rounded alike:
the noise of ``m`` equal terms is ``m`` times that of one, not ``sqrt(m)`` times, and so are the roundings of their sum.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from opmux.testing.bounds.model import Allowance, Given, derives, roundings
from opmux.testing.bounds.scores import Scores, by_sequence, per_head


@derives("attention", "attention_lse")
def _attention(given: Given) -> list[Allowance]:
    found = [
        _attention_terms(
            given, Scores.of(given.tensors, given.options, batch, heads, unit=given.unit, smallest=given.smallest)
        )
        for batch, heads in per_head(given["q"], given["k"])
    ]
    return _assembled(given, found)


@derives("attention_varlen", "attention_varlen_lse", "paged_attention", "paged_attention_lse")
def _attention_sequences(given: Given) -> list[Allowance]:
    given = replace(given, tensors=_without_scales(given.tensors))
    out = given.expected[0]
    magnitude, root = torch.zeros_like(out), torch.zeros_like(out)
    lse = out.new_zeros((out.shape[1], out.shape[0]))
    for tokens, _, tensors in by_sequence(given.tensors):
        expected = (out[None, tokens], *(e[None, :, tokens] for e in given.expected[1:]))
        one = replace(given, tensors=tensors, expected=expected, raw=tensors)
        parts = _attention(one)
        magnitude[tokens] = as_tensor(parts[0].magnitude)[0]
        if parts[0].noise is not None:
            root[tokens] = parts[0].noise[0]
        if len(parts) > 1:
            lse[:, tokens] = as_tensor(parts[1].magnitude)[0]
    found = [Allowance(magnitude, root if given.sixteen else None)]
    return found + [Allowance(lse)] * (len(given.expected) - 1)


def _without_scales(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors with the values of 8-bit codes in their place."""
    found = dict(tensors)
    for name, scale in (("q", "q_scale"), ("k_cache", "k_scale"), ("v_cache", "v_scale")):
        if name in found and not found[name].is_floating_point():
            found[name] = found[name].to(torch.float64)
        if found.get(scale) is not None:
            factors = found[scale]
            if factors.shape[0] > 1:
                factors = factors.repeat_interleave(found[name].shape[-2] // factors.shape[0])
            found[name] = found[name] * factors[:, None]
    return found


def as_tensor(value: Tensor | float) -> Tensor:
    """A magnitude as a tensor, in float64."""
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)


def _attention_terms(given: Given, scores: Scores) -> tuple[Tensor, Tensor, Tensor]:
    """For some heads: the output's magnitude, the root of its noise, the lse's magnitude."""
    keys = roundings(scores.p.shape[-1], float(scores.alike.max()) if scores.alike.numel() else 1.0)
    size = scores.v.abs()
    magnitude = scores.p_error @ size + (scores.p @ size) * (keys + 4)
    lse = scores.lse_error + keys + 2 * scores.lse.abs() + 4
    root = ((given.kept(scores.p).square() * scores.alike) @ size.square()).sqrt()
    return magnitude, root, lse.squeeze(-1)


def _assembled(given: Given, parts: Sequence[tuple[Tensor, Tensor, Tensor]]) -> list[Allowance]:
    """Combine parts of some heads each, ``(heads, seq, dim)``, into allowances in the outputs' shapes."""
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
