"""Declared caveats: the kit leaves open what the op leaves unspecified, for those who declare it, and nothing else."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from backends import plugin
from torch import Tensor

import opmux
from opmux.ops._band import Band
from opmux.plugin import AtLeast, AtMost, Caveat, Dtype, Implementation
from opmux.plugins import failures
from opmux.plugins.loading import temporary_plugin
from opmux.testing.making import Arguments
from opmux.testing.unspecified import unspecified_results

Hold = Callable[..., dict[str, Any]]

DECLARED = (Caveat.MASKED_NONFINITE,)
WHOLE = (Dtype("q", "float32", "float64"), AtMost("softcap", 0.0), AtLeast("seq_k", 1))
PROBES = {"@probe=nan", "@probe=inf", "@probe=-inf"}


def weighed(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, *, scale: Any, causal: bool, window: Any, softcap: float
) -> Tensor:
    """Attention that multiplies masked-out keys and values by 0."""
    groups = q.shape[2] // k.shape[2]
    queries, keys, values = (
        x.transpose(1, 2) for x in (q, k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2))
    )
    seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool)
    masked = Band.of(q.shape[1], k.shape[1], causal, window).masked_out(
        slice(0, q.shape[1]), slice(0, k.shape[1]), 1, q.device
    )
    seen = seen if masked is None else ~masked
    scores = (queries @ keys.mT) * (scale or 1 / math.sqrt(q.shape[3]))
    scores = scores.masked_fill(~seen, -math.inf)
    top = torch.zeros_like(scores[..., :1])
    if scores.shape[-1]:
        top = scores.amax(-1, keepdim=True)
    if sinks is not None:
        top = torch.maximum(top, sinks.to(top.dtype).view(-1, 1, 1))
    top = top.masked_fill(top == -math.inf, 0.0)
    weights = (scores - top).exp()
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + (sinks.to(top.dtype).view(-1, 1, 1) - top).exp()
    out = (weights @ values) / total.masked_fill(total == 0, 1.0)
    return out.transpose(1, 2).to(q.dtype).contiguous()


def spreading(tensors: tuple[Tensor, ...], result: Tensor, dim: int) -> Tensor:
    """The result with NaN all along a dim, where the values hold one anywhere along it."""
    bad = ~tensors[2].isfinite().all(-1)
    sequences = bad.any(1, keepdim=True).any(2, keepdim=True)
    return result.masked_fill((sequences.any(0) if dim == 0 else sequences).unsqueeze(-1), math.nan)


def failed_probes(report: dict[str, Any]) -> set[str]:
    return {"@" + f["case"].rpartition("@")[2] for f in report["failures"]}


def test_without_the_declaration_a_masked_nan_that_spreads_fails(hold: Hold) -> None:
    report = hold("attention", weighed, when=WHOLE)
    assert report["failed"] > 0
    assert failed_probes(report) <= PROBES
    assert {f["check"] for f in report["failures"]} == {"NaN and Inf"}


def test_with_the_declaration_it_passes(hold: Hold) -> None:
    assert hold("attention", weighed, when=WHOLE, caveats=DECLARED)["failed"] == 0


def test_the_declaration_excuses_no_wrong_number(hold: Hold) -> None:
    def attention(*tensors: Tensor, **options: Any) -> Tensor:
        return 1.001 * weighed(*tensors, **options)

    report = hold("attention", attention, when=WHOLE, caveats=DECLARED)
    assert "element bound" in {f["check"] for f in report["failures"]}


def test_the_declaration_excuses_no_spread_to_other_heads(hold: Hold) -> None:
    def attention(*tensors: Tensor, **options: Any) -> Tensor:
        return spreading(tensors, weighed(*tensors, **options), dim=2)

    report = hold("attention", attention, when=(*WHOLE, AtLeast("kv_heads", 2)), caveats=DECLARED)
    assert {f["check"] for f in report["failures"]} == {"NaN and Inf"}


def test_the_declaration_excuses_no_spread_to_other_sequences(hold: Hold) -> None:
    def attention(*tensors: Tensor, **options: Any) -> Tensor:
        return spreading(tensors, weighed(*tensors, **options), dim=0)

    report = hold("attention", attention, when=(*WHOLE, AtLeast("batch", 2)), caveats=DECLARED)
    assert {f["check"] for f in report["failures"]} == {"NaN and Inf"}


def test_the_declaration_excuses_no_nan_that_is_dropped_where_it_is_seen(hold: Hold) -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor, *rest: Any, **options: Any) -> Tensor:
        return weighed(q, k, v.nan_to_num(0.0), *rest, **options)

    report = hold("attention", attention, when=WHOLE, caveats=DECLARED)
    assert {f["check"] for f in report["failures"]} == {"NaN and Inf"}


def test_a_ragged_batch_leaves_open_the_sequence_that_masks_and_no_other() -> None:
    k = torch.zeros(7, 2, 8)
    k[4, 1, 3] = math.nan  # key 1 of the second sequence
    starts = torch.tensor([0, 3, 6], dtype=torch.int32)
    arguments = Arguments(
        {"q": torch.zeros(7, 4, 8), "k": k, "v": k.nan_to_num(), "cu_seqlens_q": starts, "cu_seqlens_k": starts},
        {"causal": True, "window": (-1, -1)},
    )
    made = Implementation(op="attention_varlen_lse", target=weighed, caveats=DECLARED)
    out, lse = unspecified_results(opmux.attention_varlen_lse.op, arguments, made)
    assert out is not None
    assert lse is not None
    assert out.squeeze(-1).nonzero().tolist() == [[3, 2], [3, 3]]  # the query before it, in the heads that share it
    assert torch.equal(lse, out.squeeze(-1).mT)


@pytest.mark.parametrize(
    ("name", "grad_q", "grad_k"),
    [
        ("k", [0, 1], [2]),  # queries that mask key 2; its own gradient
        ("v", [0, 1], [2]),
        ("q", [], [3]),  # the keys past query 2
        ("grad_out", [], [3]),
    ],
)
def test_gradients_are_open_on_both_sides_of_a_masked_pair(name: str, grad_q: list[int], grad_k: list[int]) -> None:
    tensors = {n: torch.zeros(1, 4, 1, 8) for n in ("grad_out", "q", "k", "v", "out")}
    tensors[name][0, 2, 0, 0] = math.inf
    made = Implementation(op="attention_backward", target=weighed, caveats=DECLARED)
    arguments = Arguments(tensors, {"causal": True, "window": (-1, -1)})
    of_q, of_k, of_v, of_sinks = unspecified_results(opmux.attention_backward.op, arguments, made)
    assert of_q is not None
    assert of_k is not None
    assert of_q[0, :, 0, 0].nonzero().flatten().tolist() == grad_q
    assert of_k[0, :, 0, 0].nonzero().flatten().tolist() == grad_k
    assert of_v is of_k
    assert of_sinks is None


def gradients(*tensors: Tensor, eps: float, output_mask: tuple[bool, ...]) -> tuple[Tensor, ...]:
    """The gradients of `layer_norm` with infinities in the place of NaN."""
    found = opmux.layer_norm_backward.op.reference(*tensors, eps=eps, output_mask=output_mask)
    return tuple(torch.where(t.isnan(), -math.inf, t) for t in found)


EITHER = (Caveat.NONFINITE_KIND,)
NARROW = (Dtype("x", "float32"),)


def test_infinities_in_the_place_of_nan_pass_only_with_the_declaration(hold: Hold) -> None:
    report = hold("layer_norm_backward", gradients, when=NARROW)
    assert {f["check"] for f in report["failures"]} == {"NaN and Inf"}
    assert failed_probes(report) <= PROBES
    assert hold("layer_norm_backward", gradients, when=NARROW, caveats=EITHER)["failed"] == 0


@pytest.mark.parametrize("wrong", ["finite", "spread"])
def test_that_declaration_excuses_neither_numbers_for_infinities_nor_infinities_for_numbers(
    hold: Hold, wrong: str
) -> None:
    def target(*tensors: Tensor, **options: Any) -> tuple[Tensor, ...]:
        found = gradients(*tensors, **options)
        if wrong == "finite":
            return tuple(t.nan_to_num(1.0, 1.0, 1.0) for t in found)
        return tuple(t if t.isfinite().all() else torch.full_like(t, math.inf) for t in found)

    report = hold("layer_norm_backward", target, when=NARROW, caveats=EITHER)
    assert {f["check"] for f in report["failures"]} == {"NaN and Inf"}


REFUSED = [
    ("paged_attention", DECLARED, "caveat MASKED_NONFINITE (a NaN or infinity in a masked-out key or value may spread) "
     "is not one that paged_attention allows"),
    ("attention", (Caveat.NONFINITE_KIND,), "caveat NONFINITE_KIND (results that are not finite may be NaN or an "
     "infinity of either sign) is not one that attention allows"),
    ("rms_norm", ("rounds twice",), "caveat 'rounds twice' is not a Caveat, as Caveat.MASKED_NONFINITE"),
    ("attention", [Caveat.MASKED_NONFINITE], "caveats= is not a tuple: write caveats=(..., )"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "caveats", "reason"), REFUSED)
def test_a_caveat_that_the_op_does_not_allow_is_refused(op: str, caveats: Any, reason: str) -> None:
    with temporary_plugin(plugin(Implementation(op=op, target=weighed, caveats=caveats)), "kernel"):
        assert failures.recorded()[-1].reason == f"kernel of {op}: {reason}"


def test_a_caveat_bars_no_choice_and_explain_shows_it() -> None:
    made = Implementation(op="attention", target=weighed, caveats=DECLARED)
    q = torch.empty(1, 4, 2, 8)
    with temporary_plugin(plugin(made), "kernel"):
        explained = opmux.explain(opmux.attention, q, q, q, causal=True)
    assert explained.chosen is not None
    assert explained.chosen.name == "kernel"
    assert explained.chosen.caveats == ("a NaN or infinity in a masked-out key or value may spread",)
    assert "priority 10; a NaN or infinity in a masked-out key or value may spread" in str(explained)
    assert explained.as_dict()["candidates"][0]["caveats"] == list(explained.chosen.caveats)
