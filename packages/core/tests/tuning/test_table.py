"""The rule of the nearest size, held against its own words; and the cells of the plan key, held against the rule."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opmux.arch import parse_arch
from opmux.callpath.op import OPS
from opmux.declared.call import Call
from opmux.tuning import TunedRecord
from opmux.tuning import table as tables
from opmux.tuning.matching import matching_of
from opmux.tuning.table import OpTable, in_force

SIZES = st.integers(1, 40)
ARCHS = ("cpu", "sm_90", "gfx942")


def record(op: str, dims: dict[str, int], line: int = 0, **values: Any) -> TunedRecord:
    """A record of float32 tensors."""
    tensors = {t.name: min(t.dtypes, key=lambda d: (d != torch.float32, str(d))) for t in OPS[op].signature.required}
    given_values = {"arch": "cpu", "backend": "a", "time_us": 1.0, "error": 0.0, "compared": 2, **values}
    return TunedRecord(op=op, dtypes=tensors, dims=dims, line=line, file="r.csv", **given_values)


def call(op: str, dims: dict[str, int], arch: str = "cpu", **options: Any) -> Call:
    """A call of float32 tensors."""
    signature = OPS[op].signature
    bound = {name: (size,) if name in signature.stars else size for name, size in dims.items()}
    filled = {o.name: options.get(o.name, o.default) for o in signature.options}
    tensors = {
        t.name: None
        if t.optional
        else torch.empty(
            t.shape.value(bound, filled), dtype=record(op, dims).dtypes[t.name], device="meta"
        )
        for t in signature.tensors
    }  # fmt: skip
    return Call(signature, parse_arch(arch), tensors, filled, bound)


def taken(table: OpTable, of: Call) -> int | None:
    """The line of the record that decides."""
    choice = table.find(of)
    return None if choice is None else int(choice.note.rpartition(":")[2])


def cell_of(table: OpTable, of: Call) -> Any:
    """What the plan key would hold."""
    made = table.feature("cell")
    assert made is not None
    feature, function = made
    return eval(feature.source, {"cell": function, "_prod": math.prod, **of.dims, **of.options})


@pytest.mark.parametrize(
    ("op", "nearest", "exact", "capacity", "fixed"),
    [
        ("rms_norm", ["tokens"], ["hidden"], [], []),
        ("linear", ["tokens"], ["k", "n"], [], ["out_dtype"]),
        ("quantize", ["m", "batch"], ["k"], [], ["dtype", "block", "scale_major"]),
        ("apply_rope", ["batch", "seq"], ["heads", "head_dim", "kv_heads", "half"], ["max_positions"], ["interleaved"]),
        (
            "attention",
            ["seq_q", "batch", "seq_k"],
            ["heads", "head_dim", "kv_heads", "value_dim"],
            [],
            ["causal", "window"],
        ),
        (
            "attention_varlen",
            ["max_seqlen_q", "tokens_q", "batch", "tokens_k", "max_seqlen_k"],
            ["heads", "head_dim", "kv_heads", "value_dim"],
            [],
            ["causal", "window"],
        ),
        (
            "paged_attention",
            ["max_seqlen_q", "tokens", "batch", "max_seqlen_k"],
            ["heads", "head_dim", "page_size", "kv_heads", "value_dim"],
            ["pages", "max_pages"],
            ["causal", "window", "layout"],
        ),
    ],
)
def test_the_parts_of_dims_and_options(op: str, nearest: list, exact: list, capacity: list, fixed: list) -> None:
    matching = matching_of(OPS[op])
    assert list(matching.nearest) == nearest
    assert list(matching.exact) == exact
    assert list(matching.capacity) == capacity
    assert [o.name for o in matching.fixed] == fixed


def test_every_size_of_every_op_has_one_part() -> None:
    for op in OPS.values():
        matching = matching_of(op)
        dims = [n for n in (*matching.nearest, *matching.exact, *matching.capacity) if n in op.signature.binders]
        assert sorted(dims) == sorted(op.signature.binders)
        options = [*(o.name for o in (*matching.fixed, *matching.free)), *(set(matching.nearest) - set(dims))]
        assert sorted(options) == sorted(o.name for o in op.signature.options)


@settings(max_examples=200, deadline=None)
@given(recorded=st.sets(SIZES, min_size=1, max_size=6), asked=st.integers(1, 60))
def test_the_smallest_recorded_that_is_not_below_else_the_largest(recorded: set[int], asked: int) -> None:
    dims = {"k": 8, "n": 8}
    table = in_force(OPS["linear"], [[record("linear", {"tokens": t, **dims}, line=t) for t in recorded]])
    expected = min((t for t in recorded if t >= asked), default=max(recorded))
    assert taken(table, call("linear", {"tokens": asked, **dims})) == expected
    assert taken(table, call("linear", {"tokens": asked, "k": 9, "n": 8})) is None
    assert taken(table, call("linear", {"tokens": asked, **dims}, arch="sm_90")) is None


def by_the_words(recorded: Sequence[tuple[int, ...]], asked: tuple[int, ...]) -> tuple[int, ...]:
    """The rule once more: one size after the other."""
    left = list(recorded)
    for place, size in enumerate(asked):
        at_least = sorted(r[place] for r in left if r[place] >= size)
        value = at_least[0] if at_least else sorted(r[place] for r in left)[-1]
        left = [r for r in left if r[place] == value]
    (only,) = left
    return only


@settings(max_examples=200, deadline=None)
@given(
    recorded=st.lists(st.tuples(SIZES, SIZES, SIZES), min_size=1, max_size=8, unique=True),
    asked=st.tuples(SIZES, SIZES, SIZES),
)
def test_several_sizes_are_sought_one_after_the_other(recorded: list, asked: tuple) -> None:
    model = {"heads": 4, "kv_heads": 2, "head_dim": 8, "value_dim": 8}
    names = ("seq_q", "batch", "seq_k")
    rows = [record("attention", {**dict(zip(names, r, strict=True)), **model}, line=i) for i, r in enumerate(recorded)]
    table = in_force(OPS["attention"], [rows])
    line = taken(table, call("attention", {**dict(zip(names, asked, strict=True)), **model}))
    assert line is not None
    assert recorded[line] == by_the_words(recorded, asked)


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "arch": st.sampled_from(ARCHS),
            "backend": st.sampled_from(("a", "b")),
            "compared": st.sampled_from((1, 2)),
            "m": st.integers(1, 8),
            "batch": st.integers(1, 3),
            "k": st.sampled_from((128, 256)),
            "options": st.sampled_from(
                (
                    {"dtype": torch.int8},
                    {"dtype": torch.int8, "block": (1, -1)},
                    {"dtype": torch.float8_e4m3fn, "scale_major": "m"},
                )
            ),
        }
    ),
    min_size=1,
    max_size=12,
)
CALLS = st.fixed_dictionaries(
    {
        "dims": st.fixed_dictionaries(
            {"batch": st.integers(1, 4), "m": st.integers(1, 10), "k": st.sampled_from((128, 256, 512))}
        ),
        "options": st.sampled_from(
            (
                {"dtype": torch.int8},
                {"dtype": torch.int8, "block": (1, -1)},
                {"dtype": torch.float8_e4m3fn, "scale_major": "m"},
                {"dtype": torch.int8, "block": (128, 128)},
            )
        ),
    }
)


def without_note(choice: Any) -> Any:
    """What a plan keeps of a choice."""
    if choice is None:
        return None
    return [(c.backend, c.config, c.picks, c.note.rpartition(":")[2]) for c in (choice, *choice.others)]


@settings(max_examples=150, deadline=None)
@given(rows=ROWS, calls=st.lists(CALLS, min_size=2, max_size=6))
def test_calls_of_one_cell_have_one_answer_on_every_arch(rows: list, calls: list) -> None:
    records = [
        record(
            "quantize",
            {name: r[name] for name in ("batch", "m", "k")},
            line=i,
            **{name: r[name] for name in ("arch", "backend", "compared", "options")},
        )
        for i, r in enumerate(rows)
    ]
    table = in_force(OPS["quantize"], [records])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "runs_here", lambda arch: True)
        for one, other in itertools.combinations(calls, 2):
            a = call("quantize", one["dims"], **one["options"])
            b = call("quantize", other["dims"], **other["options"])
            flags = [(c.options["dtype"], c.options["scale_major"]) for c in (a, b)]
            if flags[0] == flags[1] and cell_of(table, a) == cell_of(table, b):
                for arch in ARCHS:
                    on = [Call(c.signature, parse_arch(arch), c.tensors, c.options, c.dims) for c in (a, b)]
                    assert without_note(table.find(on[0])) == without_note(table.find(on[1]))


def test_an_option_that_a_record_does_not_name_is_its_default() -> None:
    dims = {"seq_q": 4, "seq_k": 4, "batch": 1, "heads": 1, "kv_heads": 1, "head_dim": 8, "value_dim": 8}
    plain, causal = record("attention", dims, 1), record("attention", dims, 2, options={"causal": True})
    table = in_force(OPS["attention"], [[plain, causal]])
    assert taken(table, call("attention", dims)) == 1
    assert taken(table, call("attention", dims, causal=True)) == 2
    assert taken(table, call("attention", dims, window=(4, 0))) is None
    assert taken(table, call("attention", dims, scale=0.5, softcap=30.0)) == 1


def test_a_number_that_a_record_names_must_be_equal_and_comes_first() -> None:
    dims = {"seq_q": 4, "seq_k": 4, "batch": 1, "heads": 1, "kv_heads": 1, "head_dim": 8, "value_dim": 8}
    far = {**dims, "seq_q": 64}
    any_cap, capped = record("attention", dims, 1), record("attention", far, 2, options={"softcap": 30.0})
    table = in_force(OPS["attention"], [[any_cap, capped]])
    assert taken(table, call("attention", dims)) == 1
    assert taken(table, call("attention", dims, softcap=50.0)) == 1
    assert taken(table, call("attention", dims, softcap=30.0)) == 2
    made = table.feature("cell")
    assert made is not None
    heads = "(heads, head_dim, kv_heads, value_dim, tuple(window))"
    assert made[0].source == f"cell({heads}, (softcap,), seq_q, batch, seq_k)"
    cells = [cell_of(table, call("attention", dims, softcap=cap)) for cap in (0.0, 50.0, 30.0)]
    text = "heads=1 head_dim=8 kv_heads=1 value_dim=8 window=-1,-1 seq_q<=4"
    assert cells == [(text, "other"), (text, "other"), (text, 30.0)]


def test_none_is_a_value_that_a_record_may_name() -> None:
    dims = {"seq_q": 4, "seq_k": 4, "batch": 1, "heads": 1, "kv_heads": 1, "head_dim": 8, "value_dim": 8}
    table = in_force(OPS["attention"], [[record("attention", dims, 1, options={"scale": None})]])
    unscaled, scaled = call("attention", dims), call("attention", dims, scale=0.5)
    assert (taken(table, unscaled), taken(table, scaled)) == (1, None)
    assert cell_of(table, unscaled) != cell_of(table, scaled)


def test_an_optional_tensor_must_be_given_or_absent_alike() -> None:
    dims = {"tokens": 4, "k": 8, "n": 8}
    table = in_force(OPS["linear"], [[record("linear", dims, 1)]])
    with_bias = call("linear", dims)
    with_bias = Call(
        with_bias.signature,
        with_bias.arch,
        {**with_bias.tensors, "bias": torch.empty(8, device="meta")},
        with_bias.options,
        with_bias.dims,
    )
    assert taken(table, call("linear", dims)) == 1
    assert taken(table, with_bias) is None


def test_dtypes_must_be_equal() -> None:
    dims = {"tokens": 4, "k": 8, "n": 8}
    table = in_force(OPS["linear"], [[record("linear", dims, 1)]])
    single = call("linear", dims)
    halves = {name: None if t is None else t.half() for name, t in single.tensors.items()}
    assert taken(table, single) == 1
    assert taken(table, Call(single.signature, single.arch, halves, single.options, single.dims)) is None


@pytest.mark.parametrize("named", [{}, {"out_dtype": None}, {"out_dtype": torch.float32}], ids=str)
def test_the_dtype_that_a_result_has_anyway_is_that_of_calls_which_name_none(named: dict[str, Any]) -> None:
    dims = {"tokens": 4, "k": 8, "n": 8}
    table = in_force(OPS["linear"], [[record("linear", dims, 1, options=named)]])
    assert taken(table, call("linear", dims)) == 1


def test_buffers_are_not_matched() -> None:
    dims = {
        "tokens": 4, "kv_heads": 2, "head_dim": 8, "value_dim": 8, "pages": 64, "page_size": 16,
    }  # fmt: skip
    table = in_force(OPS["write_kv_cache"], [[record("write_kv_cache", dims, 1)]])
    assert taken(table, call("write_kv_cache", {**dims, "pages": 100_000})) == 1
    assert taken(table, call("write_kv_cache", {**dims, "page_size": 32})) is None


def test_cells_in_words() -> None:
    rows = [record("linear", {"tokens": t, "k": 8, "n": 16}, t) for t in (1, 64, 4096)]
    table = in_force(OPS["linear"], [[*rows, record("linear", {"tokens": 5, "k": 16, "n": 16}, 5)]])
    words = [cell_of(table, call("linear", {"tokens": t, "k": 8, "n": 16})) for t in (1, 2, 64, 65, 4096, 10_000)]
    assert words == [
        "k=8 n=16 tokens<=1",
        "k=8 n=16 tokens<=64",
        "k=8 n=16 tokens<=64",
        "k=8 n=16 tokens>64",
        "k=8 n=16 tokens>64",
        "k=8 n=16 tokens>64",
    ]
    assert cell_of(table, call("linear", {"tokens": 9, "k": 16, "n": 16})) == "k=16 n=16"
    assert cell_of(table, call("linear", {"tokens": 9, "k": 16, "n": 17})) == "none"
