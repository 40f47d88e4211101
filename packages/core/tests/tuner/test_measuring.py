"""Measuring a point: what is right is timed, what is not is left out with its reason."""

import dataclasses
import json

import pytest
import torch
from tuner_points import norm

from opmux.arch import known_arch
from opmux.shapes import Point
from opmux.tuner import checking
from opmux.tuner.calls import Budget, arguments_of, fitted
from opmux.tuner.candidates import Failure, takers_of, worth_timing
from opmux.tuner.drawing import point_of
from opmux.tuner.measuring import Request, build, measure
from opmux.tuning.work import Work

CPU = torch.device("cpu")
HALF = torch.bfloat16


def found(**fields):
    """What was measured, and the reasons of the failures by config."""
    request = Request(norm(), **{"rounds": 4, **fields})
    measured = measure("cpu", request)
    return measured, {(f.config and json.loads(f.config)["kind"]): f.reason for f in measured.failures}


def test_every_implementation_runs_in_every_config_and_the_best_of_each_is_kept(planted) -> None:
    planted("slow right")
    measured, reasons = found()
    assert not reasons
    assert not measured.problem
    by_name = {t.candidate.name: t for t in measured.timings}
    assert set(by_name) == {'planted {"kind": "right", "amount": 0}', "planted:other", "reference"}, "slow is screened"
    assert [t.candidate.implementation for t in measured.best] == [t.candidate.implementation for t in measured.timings]
    assert all(t.rounds == 4 and 0 <= t.error <= 1 and t.q1_us <= t.median_us <= t.q3_us for t in measured.timings)
    assert [t.median_us for t in measured.timings] == sorted(t.median_us for t in measured.timings)
    assert by_name["planted:other"].candidate.version == "1.2.3"


def test_what_is_wrong_or_raises_is_left_out_with_its_reason(planted) -> None:
    planted("wrong raising memory shapeless")
    measured, reasons = found()
    assert reasons.pop("wrong").startswith("wrong: `y`[3, ")
    assert reasons == {
        "raising": "RuntimeError: no such instruction",
        "memory": "out of memory: tried to allocate 2 GiB",
        "shapeless": "wrong: `y` has shape (), expected (4, 32)",
    }
    assert {t.candidate.implementation for t in measured.best} == {"planted", "planted:other", "reference"}


def test_configs_that_are_none_and_a_space_that_raises_are_failures(planted) -> None:
    planted("unfit breaking")
    measured, _ = found()
    assert measured.failures == (
        Failure("planted", None, "{'kind': 'unfit'} is no config of it: kind is unfit"),
        Failure("planted", None, "its space raised ZeroDivisionError: no space"),
    )
    assert "planted" in {t.candidate.implementation for t in measured.timings}


def test_only_what_is_asked_for_is_measured(planted) -> None:
    planted("slow wrong")
    measured, _ = found(backends=("planted:other",))
    assert [t.candidate.implementation for t in measured.timings] == ["planted:other"]
    again, reasons = found(only={"planted": ('{"kind": "slow", "amount": 2}',)})
    assert [t.candidate.config for t in again.timings] == ['{"kind": "slow", "amount": 2}']
    assert not reasons
    excluded = (Failure("planted", '{"kind": "wrong", "amount": 0}', "known"),)
    assert found(excluded=excluded)[0].failures == ()


@pytest.mark.parametrize("most", [1, 2, 3])
def test_no_more_configs_are_tried_than_asked_for(planted, most: int) -> None:
    planted("raising wrong memory breaking")
    measured, reasons = found(most_configs=most)
    assert list(reasons) == ["raising", "wrong"][: most - 1]
    assert {t.candidate.implementation for t in measured.timings} == {"planted", "planted:other", "reference"}


def test_memory_that_is_short_while_several_build_is_no_failure(planted) -> None:
    planted("memory raising built")
    built = build("cpu", Request(norm()), 0, 1)
    assert [f.reason for f in built.failures] == ["RuntimeError: no such instruction"]
    assert not built.timings
    assert built.build_s == 1.5 * built.builds > 0


def test_kernels_that_are_compiled_are_counted(planted) -> None:
    planted("built")
    measured, _ = found(backends=("planted",))
    assert measured.builds > 0
    assert measured.build_s == 1.5 * measured.builds


def test_what_fits_no_memory_is_the_points_own_problem(planted, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_, **__):
        raise torch.OutOfMemoryError("tried to allocate 4 TiB")

    monkeypatch.setattr(checking, "arguments_of", full)
    measured, _ = found()
    assert measured.problem == "out of memory: tried to allocate 4 TiB"
    assert not measured.timings


def test_a_call_whose_oracle_costs_too_much_is_checked_on_fewer_tokens_and_against_the_others(
    planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = norm(tokens=512)
    monkeypatch.setattr(Budget, "of_device", classmethod(lambda cls, device: cls(2.0**18, 1e9)))
    assert fitted(point, Budget.of_device(CPU)).dims == {"tokens": 128, "hidden": 32}
    planted("right")
    measured = measure("cpu", Request(point, rounds=3))
    assert {t.candidate.implementation for t in measured.best} == {"planted", "planted:other", "reference"}

    def late(x, weight, *, eps, weight_offset, config):
        import planted_plugin

        found = planted_plugin.normed(x, weight, eps, weight_offset)
        return found * 2 if config.kind == "wrong" and x.shape[0] > 128 else found

    from opmux import rms_norm

    op = rms_norm.op
    changed = tuple(dataclasses.replace(i, target=late) if i.full_name == "planted" else i for i in op.implementations)
    before = op.implementations
    op.set_implementations(changed)
    try:
        planted("wrong")
        measured = measure("cpu", Request(point, rounds=3))
    finally:
        op.set_implementations(before)
    assert [f.reason for f in measured.failures] == ["wrong: its result of the whole call differs from the others'"]


def dense(batch: int, seq_q: int, seq_k: int) -> Point:
    dims = {"heads": 4, "kv_heads": 2, "head_dim": 64, "value_dim": 64}
    return Point("attention", dict.fromkeys("qkv", HALF), {"batch": batch, "seq_q": seq_q, "seq_k": seq_k, **dims})


def paged(batch: int, new: int, context: int) -> Point:
    dims = {"heads": 4, "kv_heads": 2, "head_dim": 64, "value_dim": 64, "page_size": 16, "batch": batch}
    pages = -(-context // 16)
    dims |= {"tokens": batch * new, "pages": batch * pages, "max_pages": pages}
    dtypes = dict.fromkeys(("q", "k_cache", "v_cache"), HALF)
    dtypes |= dict.fromkeys(("cu_seqlens_q", "seq_lens", "block_table"), torch.int32)
    return Point("paged_attention", dtypes, dims, {"max_seqlen_q": new, "max_seqlen_k": context})


@pytest.mark.parametrize(
    ("point", "smaller"),
    [
        (dense(8, 1024, 1024), {"batch": 1, "seq_q": 512, "seq_k": 512}),
        (dense(1, 1024, 4096), {"batch": 1, "seq_q": 256, "seq_k": 1024}),
        (dense(1, 130, 130), {"batch": 1, "seq_q": 130, "seq_k": 130}),
        (paged(512, 1, 256), {"batch": 64, "tokens": 64, "max_seqlen_q": 1, "max_seqlen_k": 256}),
        (paged(2, 512, 4096), {"batch": 1, "tokens": 128, "max_seqlen_q": 128, "max_seqlen_k": 1024}),
    ],
)
def test_a_smaller_call_has_fewer_sequences_first_and_stays_valid(point: Point, smaller: dict[str, int]) -> None:
    made = fitted(point, Budget(2.0**26, 1e9))
    made.check()
    sizes = {**made.dims, **made.options}
    assert {name: sizes[name] for name in smaller} == smaller


def test_sequences_are_alike_and_as_long_as_the_call_allows() -> None:
    arguments = arguments_of(paged(4, 3, 100), CPU, exact=True)
    assert arguments.tensors["seq_lens"].tolist() == [100] * 4
    assert arguments.tensors["cu_seqlens_q"].tolist() == [0, 3, 6, 9, 12]
    table = arguments.tensors["block_table"]
    assert len(set(table.flatten().tolist())) == table.numel()
    ragged = Point(
        "attention_varlen",
        dict.fromkeys("qkv", HALF) | dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), torch.int32),
        {"tokens_q": 30, "tokens_k": 60, "batch": 3, "heads": 2, "kv_heads": 2, "head_dim": 8, "value_dim": 8},
        {"max_seqlen_q": 8, "max_seqlen_k": 20},
    )
    made = arguments_of(ragged, CPU, exact=True)
    assert made.tensors["cu_seqlens_q"].tolist() == [0, 8, 16, 24]
    assert made.tensors["cu_seqlens_k"].tolist() == [0, 20, 40, 60]


def test_the_work_of_ragged_calls_is_that_of_their_lengths() -> None:
    measured = measure("cpu", Request(paged(2, 1, 64), rounds=1))
    assert measured.flops == 2 * 2 * 64 * 4 * (64 + 64)


def test_on_a_gpu_the_reference_is_timed_only_where_nothing_else_takes_the_call(planted) -> None:
    every = takers_of(norm(), known_arch("cpu"), None)
    assert "reference" in {taker.implementation.full_name for taker in every}
    gpu = [taker.implementation.full_name for taker in worth_timing(every, torch.device("cuda"))]
    assert gpu == ["planted", "planted:other"]
    alone = [taker for taker in every if taker.implementation.full_name == "reference"]
    assert worth_timing(alone, torch.device("cuda")) == alone
    assert worth_timing(every, torch.device("cpu")) == every


@pytest.mark.parametrize("op", ["masked_grouped_linear", "scaled_masked_grouped_linear"])
def test_rows_that_an_op_leaves_unwritten_are_not_compared(op: str) -> None:
    sizes = {"groups": 3, "max_m": 8, "expected_m": 3, "n": 16, "k": 128}
    if op.startswith("scaled"):
        sizes |= {"m_blocks": 8, "k_blocks": 1, "w_rows": 1, "w_blocks": 1, "out_dtype": torch.bfloat16}
    prepared = checking.Prepared(point_of(op, sizes, HALF), CPU, exact=True)

    def rubbish_behind_the_counts(*tensors, **options):
        out = prepared.op.reference(*tensors, **options)
        out[:, options["expected_m"] :] = torch.nan
        return out

    assert prepared.results(rubbish_behind_the_counts)[0].isfinite().all()
    oracle = checking.Oracle(point_of(op, sizes, HALF), CPU)
    assert oracle.error(rubbish_behind_the_counts) <= 1


def sized(op: str, **sizes) -> Point:
    return point_of(op, {"n": 256, "k": 256, "out_dtype": HALF, **sizes}, HALF)


@pytest.mark.parametrize(("blocks", "fewer"), [(4096, 2048), (32, 16), (1, 1)])
def test_scales_shrink_with_their_rows(blocks: int, fewer: int) -> None:
    w = {4096: (2, 2), 32: (2, 2), 1: (1, 1)}[blocks]
    scales = {"m_blocks": blocks, "k_blocks": w[1], "w_rows": w[0], "w_blocks": w[1]}
    names = ["scaled_grouped_linear", "scaled_masked_grouped_linear"] if blocks != 32 else ["static_quantize"]
    for op in names:
        if op == "static_quantize":
            point = point_of(op, {"batch": 1, "m": 4096, "k": 256, "dtype": torch.int8, **scales}, HALF)
        else:
            rows = {"max_m": 4096, "expected_m": 4096} if "masked" in op else {"m": 4096}
            point = sized(op, groups=2, **rows, **scales)
        smaller = fitted(point, Budget(1e5, 1e30))
        smaller.check()
        assert smaller != point
        assert smaller.dims["m_blocks"] <= fewer


def test_few_rows_go_to_as_many_groups() -> None:
    for rows, groups, full in ((8, 128, 8), (128, 8, 8), (100, 8, 8)):
        point = sized("grouped_linear", m=rows, groups=groups)
        offsets = arguments_of(point, CPU, exact=True).tensors["group_offsets"]
        lengths = offsets.diff()
        assert int(offsets[0]) == 0
        assert int(offsets[-1]) == rows
        assert int((lengths > 0).sum()) == full
        assert int(lengths.max() - lengths.min()) <= 1


def test_weights_of_groups_without_rows_are_not_read() -> None:
    few, many = (sized("grouped_linear", m=rows, groups=128) for rows in (8, 128))
    moved = [Work(p.definition, p.dtypes, p.options).moved_bytes(p.dims) for p in (few, many)]
    weights = 2 * 256 * 256
    assert moved[0] == pytest.approx(8 * weights, rel=0.05)
    assert moved[1] == pytest.approx(128 * weights, rel=0.05)
