"""Every op has cases, every case is a good call, and its peer computes the same."""

import dataclasses

import pytest
import torch

from opmux.bench.cases import MAKERS
from opmux.bench.clocks import CpuClock
from opmux.bench.contest import Contest
from opmux.bench.data import Arguments, Data
from opmux.bench.peers import EAGER, peers_of
from opmux.bench.shapes import FIGURES, SIZES, Shape, shapes_of
from opmux.bench.work import all_options, flops_of, moved_of
from opmux.callpath.op import OPS
from opmux.signatures.validation import check_call

CPU = torch.device("cpu")
PREFILL = Shape("prefill", 256, 384, 4, 2, 32, batch=2, new=24, context=24)
CHUNK = Shape("chunk", 256, 384, 4, 2, 32, batch=2, new=8, context=40)
DECODE = Shape("decode", 256, 384, 4, 1, 32, batch=3, new=1, context=33)


def made(op: str, shape: Shape = PREFILL, dtype: torch.dtype = torch.float32) -> Arguments:
    return MAKERS[op](Data.seeded(CPU, dtype), shape)


def test_every_op_of_the_core_has_cases() -> None:
    assert set(MAKERS) == {name for name, op in OPS.items() if op.reference.__module__.startswith("opmux.")}


@pytest.mark.parametrize("shape", [PREFILL, CHUNK, DECODE], ids=lambda shape: shape.name)
@pytest.mark.parametrize("op", MAKERS)
def test_a_case_is_a_good_call_and_its_peer_gives_the_references_result(op: str, shape: Shape) -> None:
    arguments = made(op, shape)
    definition = OPS[op]
    check_call(definition.signature, definition.names(arguments.tensors), all_options(definition, arguments))
    if definition.check_data is not None:
        definition.check_data(**definition.names(arguments.tensors), **all_options(definition, arguments))
    contest = Contest(definition, arguments, CpuClock())
    with torch.no_grad():
        contest.enter_peers(peers_of(definition, arguments, CPU, compiled=False))
    assert contest.left == []
    (peer,) = contest.entries
    assert (peer.name, peer.kind) == (EAGER, "peer")
    # A quotient on the edge between two codes may fall to either side.
    assert peer.difference < (0.08 if op.endswith("quantize") and op != "dequantize" else 1e-4)


@pytest.mark.parametrize("op", MAKERS)
def test_work_is_counted(op: str) -> None:
    arguments = made(op)
    assert moved_of(OPS[op], arguments) > 0
    flops = flops_of(OPS[op], arguments)
    assert (flops is not None and flops > 0) == (
        ("attention" in op and "merge" not in op) or "linear" in op or "weight_grad" in op
    )


def test_dtypes_are_the_runs() -> None:
    assert {t.dtype for t in made("linear", dtype=torch.bfloat16).tensors if t is not None} == {torch.bfloat16}


def test_decode_hides_no_score_and_prefill_nearly_half() -> None:
    assert made("attention", DECODE).share == 1
    assert made("attention", PREFILL).share == pytest.approx((24 * 25 / 2) / 24**2)
    assert made("attention", CHUNK).share == pytest.approx(sum(range(33, 41)) / (8 * 40))


@pytest.mark.parametrize("size", SIZES)
def test_the_shapes_of_models_fit_together(size: str) -> None:
    for shape in SIZES[size]:
        assert shape.heads % shape.kv_heads == 0
        assert shape.heads * shape.head_dim == shape.hidden
        assert shape.new <= shape.context
        assert shape.hidden % 128 == 0
        assert shape.tokens == shape.batch * shape.new
    assert len({shape.name for shape in SIZES[size]}) == len(SIZES[size])


@pytest.mark.parametrize("op", FIGURES)
def test_the_shapes_that_show_what_a_kernel_reaches_fit_together(op: str) -> None:
    shapes = shapes_of("figures", op)
    for shape in shapes:
        assert shape.heads % shape.kv_heads == 0
        assert shape.new <= shape.context
        assert shape.tokens == shape.batch * shape.new
    assert len({shape.name for shape in shapes}) == len(shapes)


def test_an_op_without_figures_of_its_own_has_those_of_many_rows() -> None:
    assert shapes_of("figures", "rms_norm_backward") == FIGURES["rms_norm"][:1]
    assert shapes_of("small", "rms_norm") == SIZES["small"]


def test_without_a_mask_every_score_is_seen() -> None:
    full = dataclasses.replace(PREFILL, causal=False)
    assert made("attention", full).share == 1
    assert made("attention", full).options == {"causal": False}
    assert made("attention_varlen", full).options["causal"] is False


def test_pages_have_the_size_that_the_shape_says() -> None:
    assert made("paged_attention", dataclasses.replace(PREFILL, page_size=32)).tensors[1].shape[1] == 32


def test_pages_lie_scattered() -> None:
    table = made("paged_attention", dataclasses.replace(PREFILL, context=64)).tensors[5]
    assert table is not None
    assert sorted(table.flatten().tolist()) == list(range(8))
    assert table.flatten().tolist() != list(range(8))
