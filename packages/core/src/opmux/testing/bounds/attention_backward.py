"""Bounds of the gradients of attention, dense and ragged.

dP = dO.V, shift = dlse - dO.out, dS = P (dP + shift), each with its error; the products follow as in the forward. The
lse is given, so the error of P is that of its own score; dS below the smallest normal number may be flushed to zero.
"""

from dataclasses import replace

import torch
from torch import Tensor

from opmux.testing.bounds.attention import as_tensor
from opmux.testing.bounds.model import Allowance, Given, derives, roundings, row_sums
from opmux.testing.bounds.scores import Scores, attended, by_sequence, per_head


@derives("attention_backward")
def _attention_backward(given: Given) -> list[Allowance]:
    q, k, v = given["q"], given["k"], given["v"]
    sizes, roots = ([torch.zeros_like(t) for t in (q, k, v)] for _ in range(2))
    sinks = given.tensors.get("sinks")
    of_sinks = None if sinks is None else torch.zeros_like(sinks)
    groups = q.shape[2] // max(1, k.shape[2])
    queries = roundings(q.shape[1] * groups)
    for batch, heads in per_head(q, k):
        scores = Scores.of(
            given.tensors, given.options, batch, heads, saved=True, unit=given.unit, smallest=given.smallest
        )
        one = attended(given.tensors, batch, heads, groups)
        grad, out = one["grad_out"], one["out"]
        shift = one["grad_lse"] - row_sums(grad * out)
        width = roundings(v.shape[-1])
        e_shift = width * row_sums((grad * out).abs()) + one["grad_lse"].abs()
        grad_p = grad @ scores.v.mT
        ds = scores.p * (grad_p + shift)
        most = scores.p + given.unit * scores.p_error  # what the probability may be
        e_ds = most * (width * (grad.abs() @ scores.v.abs().mT) + e_shift)
        e_ds = e_ds + (grad_p.abs() + shift.abs()) * (scores.p_error + 4 * most)
        e_ds = torch.where(ds.abs() < 2 * given.smallest, torch.maximum(e_ds, ds.abs() / given.unit), e_ds)
        e_ds = e_ds * scores.slope
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
        sizes[2][batch, :, kv] += _grouped(
            (scores.p_error + scores.p * (queries + 4)).mT @ grad.abs(), groups
        ).transpose(0, 1)
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
        one = replace(given, tensors=tensors, expected=(*expected, given.expected[3]), raw=tensors)
        parts = _attention_backward(one)
        for i, place in enumerate(places):
            sizes[i][place] = as_tensor(parts[i].magnitude)[0]
            noise = parts[i].noise
            if noise is not None:
                noises[i][place] = noise[0]
        if of_sinks is not None:
            of_sinks += as_tensor(parts[3].magnitude)
    found = [Allowance(s, n if given.sixteen else None) for s, n in zip(sizes, noises, strict=True)]
    return [*found, Allowance(0.0 if of_sinks is None else of_sinks)]
