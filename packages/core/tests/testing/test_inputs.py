"""Inputs: index data that the ops accept, poison wherever nothing may be read, the same contents for the same id."""

import pytest
import torch

import opmux
from opmux.callpath.op import OPS
from opmux.testing import cases_of, makes, parse_case
from opmux.testing.contents import QUIET_ROWS
from opmux.testing.inputs import make_arguments
from opmux.testing.making import MAKERS, Making
from opmux.testing.memory import POISON_INDEX, bits
from opmux.testing.sequences import draw_lengths, draw_paged

CPU = torch.device("cpu")
CHECKED = sorted(name for name, op in OPS.items() if op.check_data is not None)


@pytest.mark.parametrize("profile", ["small", "interpreter"])
@pytest.mark.parametrize("op", CHECKED)
def test_index_data_is_valid(op: str, profile: str) -> None:
    check = OPS[op].check_data
    assert check is not None
    for case in cases_of(op, profile):
        for round_ in (0, 1):
            made = make_arguments(case, CPU, round_)
            check(**made.tensors, **made.options)


def test_one_id_one_content() -> None:
    case = next(c for c in cases_of("paged_attention", "small") if "v_scale" in c.dtypes and "q_scale" in c.dtypes)
    first, again, other = (make_arguments(case, CPU, round_) for round_ in (0, 0, 1))
    for name, tensor in first.tensors.items():
        assert tensor is not None
        assert torch.equal(bits(tensor), bits(again.tensors[name]))
    assert not torch.equal(bits(first.tensors["q"]), bits(other.tensors["q"]))
    assert not torch.equal(first.tensors["block_table"], other.tensors["block_table"])


def test_ragged_batches_have_empty_sequences_and_loose_ends() -> None:
    made = make_arguments(cases_of("attention_varlen", "small")[0], CPU)
    ends = made.tensors["cu_seqlens_q"]
    lengths = ends.diff()
    assert ends[0] == 0
    assert (lengths == 0).any()
    assert ends[-1] < made.tensors["q"].shape[0]
    assert made.options["max_seqlen_q"] == lengths.max()


def test_bounds_of_lengths_may_be_loose() -> None:
    (loose,) = [c for c in cases_of("attention_varlen", "small") if c.data == "loose"][:1]
    made = make_arguments(loose, CPU)
    assert made.options["max_seqlen_k"] == made.tensors["cu_seqlens_k"].diff().max() + 37


def test_pages_are_distinct_and_the_rest_is_rubbish() -> None:
    made = make_arguments(cases_of("paged_attention", "small")[0], CPU)
    table, lengths = made.tensors["block_table"], made.tensors["seq_lens"]
    k_cache = made.tensors["k_cache"]
    pages = [row[: -(-int(n) // k_cache.shape[1])].tolist() for row, n in zip(table, lengths, strict=True)]
    used = [page for row in pages for page in row]
    assert len(set(used)) == len(used) > 3
    rest = [entry for row, some in zip(table, pages, strict=True) for entry in row[len(some) :].tolist()]
    assert set(rest) == {POISON_INDEX, 2**31 - 1}
    unused = [page for page in range(k_cache.shape[0]) if page not in used]
    assert k_cache[unused].isnan().all()
    for row, length in zip(pages, lengths.tolist(), strict=True):
        tail = length % k_cache.shape[1]
        if tail:
            assert k_cache[row[-1], tail:].isnan().all()
            assert not k_cache[row[-1], :tail].isnan().any()


@pytest.mark.parametrize(("kind", "new"), [("decode", {0, 1}), ("prefill", None), ("normal", None)])
def test_kinds_of_paged_batches(kind: str, new: set[int] | None) -> None:
    generator = torch.Generator().manual_seed(3)
    found = draw_paged(generator, batch=4, tokens=40, pages=20, page_size=16, max_pages=5, kind=kind)
    assert sum(found["pages"]) <= 20
    assert all(n <= length for n, length in zip(found["new"], found["lengths"], strict=True))
    if new is not None:
        assert set(found["new"]) <= new
    if kind == "prefill":
        assert found["new"] == found["lengths"]


@pytest.mark.parametrize("tokens", [0, 1, 5, 100])
@pytest.mark.parametrize("batch", [0, 1, 2, 7])
def test_lengths_fit(batch: int, tokens: int) -> None:
    lengths = draw_lengths(torch.Generator().manual_seed(1), batch, tokens)
    assert len(lengths) == batch
    assert min(lengths, default=0) >= 0
    assert sum(lengths) <= tokens


def test_slots_are_distinct_and_some_are_skipped() -> None:
    slots = make_arguments(cases_of("write_kv_cache", "small")[0], CPU).tensors["slot_mapping"]
    kept = slots[slots >= 0]
    assert (slots == -1).any()
    assert kept.unique().numel() == kept.numel()


def test_rows_of_norms_differ_in_scale() -> None:
    x = make_arguments(parse_case("rms_norm", "f32,tokens=6,hidden=4096"), CPU).tensors["x"]
    expected = torch.tensor(QUIET_ROWS).repeat(2)
    assert torch.allclose(x.square().mean(-1).sqrt(), expected, rtol=0.1)


def test_gains_lie_around_what_the_offset_leaves() -> None:
    plain, offset = (
        make_arguments(parse_case("rms_norm", f"f32,tokens=1,hidden=4096{o}"), CPU).tensors["weight"].mean()
        for o in ("", ",weight_offset=1.0")
    )
    assert plain == pytest.approx(1, abs=0.02)
    assert offset == pytest.approx(0, abs=0.02)


def test_what_a_backward_takes_of_its_forward_is_consistent() -> None:
    made = make_arguments(cases_of("attention_backward", "small")[0], CPU)
    tensors, options = made.tensors, made.options
    forward = {o.name: options[o.name] for o in opmux.attention_lse.op.signature.options}
    out, lse = opmux.attention_lse.reference(*(tensors[n] for n in ("q", "k", "v", "sinks")), **forward)
    assert torch.equal(tensors["out"], out)
    assert torch.equal(tensors["lse"], lse)


def test_a_plugin_can_register_a_maker() -> None:
    @makes("gate", op="silu_mul")
    def ones(making: Making) -> torch.Tensor:
        return torch.ones(making.shape, dtype=making.dtype)

    try:
        case = cases_of("silu_mul", "small")[0]
        assert make_arguments(case, CPU).tensors["gate"].eq(1).all()
        assert make_arguments(cases_of("gelu_mul", "small")[0], CPU).tensors["gate"].std() > 1
    finally:
        del MAKERS["silu_mul", "gate"]
