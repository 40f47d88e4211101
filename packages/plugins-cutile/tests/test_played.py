"""Every call that `benchmarks/on_gpu.py` checks on a GPU, with its kernels played on the CPU, beside the references."""

import sys
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest
import torch
from played.launches import on

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from cases import PAGED_LENGTHS, Example, checked, drawn, heads_of, paged_of
from gradient_cases import checked as gradient_cases
from on_gpu import difference, outputs
from turned_on_gpu import kinds, one

import opmux
from opmux.plugin import takers
from opmux.testing import run_case
from opmux.testing.case import VALUES
from opmux.testing.cases import cases_of
from opmux.testing.execution import ops_of
from opmux_cutile.attention.gathered.configs import WIDEST
from opmux_cutile.gates.configs import GatedConfig
from opmux_cutile.launching import noting
from opmux_cutile.paged import targets as paged
from opmux_cutile.paged.targets import splits_of
from opmux_cutile.quantization import targets as quantization
from opmux_cutile.scaled.configs import TURNED

MOST_ELEMENTS = 1 << 20
"""Of a call's tensors together: more take too long where every block is played."""


def small(example: Example) -> bool:
    """Whether a call can be played in about a second."""
    return sum(tensor.numel() for tensor in example.make("meta") if tensor is not None) <= MOST_ELEMENTS


def compare(example: Example, arch: str = "sm_90", backend: str = "cutile") -> None:
    """Play a call, and hold its results to the reference."""
    with torch.no_grad(), on(arch):
        found = outputs(example, backend, "cpu")
    wanted = outputs(example, "reference", "cpu")
    wrong = [difference(example, f, w) for f, w in zip(found, wanted, strict=True)]
    assert not any(wrong), (example.text, wrong)


CALLS = {op: list(found) for op, found in groupby(sorted(checked(), key=lambda e: e.op), key=lambda e: e.op)}


def _narrow(ragged: bool, dim: int, width: int) -> list[torch.Tensor | None]:
    """Queries, keys and values of narrow heads, of more than 264 blocks: a Hopper multiprocessor has four of them."""
    dense = (1, 260, 60, dim), (1, 270, 6, dim), (1, 270, 6, width)
    sizes = ((150, 70, dim), (150, 7, dim), (150, 7, width)) if ragged else dense
    tensors: list[torch.Tensor | None] = [drawn("cpu", *size) for size in sizes]
    starts = torch.tensor([0, 70, 70, 150], dtype=torch.int32)
    return [*tensors, starts, starts, None] if ragged else [*tensors, None]


@pytest.mark.parametrize(("dim", "width"), [(64, 64), (40, 24)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("ragged", [False, True])
def test_narrow_heads_are_right_where_blocks_share_a_multiprocessor(
    ragged: bool, causal: bool, dim: int, width: int
) -> None:
    op = "attention_varlen" if ragged else "attention"
    options = {"causal": causal} | ({"max_seqlen_q": 80, "max_seqlen_k": 80} if ragged else {})
    example = Example(op, f"{dim} {width}", lambda d: _narrow(ragged, dim, width), options)
    with torch.no_grad(), on("sm_90"), noting() as launches:
        outputs(example, "cutile", "cpu")
    assert [kernel.hints["occupancy"] for kernel, *_ in launches] == [4]
    compare(example)


@pytest.mark.parametrize(("backend", "arch", "dim", "kept"), [
    ("cutile", "sm_90", 64, False), ("cutile:gathered", "sm_80", 64, False), ("cutile:registers", "sm_120", 192, True),
])  # fmt: skip
def test_subnormal_shares_are_zero_but_of_wide_heads_whose_rows_threads_copy(backend, arch, dim, kept) -> None:
    q = torch.full((1, 1, 1, dim), 1.0, dtype=torch.bfloat16)
    k = torch.zeros(1, 2, 1, dim, dtype=torch.bfloat16)
    k[0, 1, 0, 0] = -130.0 / 1.4426950408889634
    v = torch.zeros_like(k)
    v[0, 1] = 1e38
    with torch.no_grad(), on(arch):
        found = opmux.attention(q, k, v, None, scale=1.0, backend=backend)
    assert bool(found.any()) is kept


@pytest.mark.parametrize("op", CALLS)
def test_results_are_those_of_the_reference(op: str) -> None:
    played = [example for example in CALLS[op] if small(example)]
    assert played
    for example in played:
        compare(example)


def test_products_are_right_where_threads_copy_operands() -> None:
    played = [example for example in CALLS["linear"] if small(example)][::3]
    assert len(played) > 5
    for example in played:
        compare(example, "sm_80", "cutile:gathered")


@pytest.mark.parametrize("place", [0, 1, 2, 7], ids=["one row", "edges", "few columns", "float16"])
def test_gradients_of_products_are_right_where_threads_copy_operands(place: int) -> None:
    played = [example for example in CALLS["linear_backward"] if small(example)]
    compare(played[place], "sm_80", "cutile:gathered")


@pytest.mark.parametrize("op", ["attention", "attention_lse", "attention_varlen", "attention_varlen_lse"])
@pytest.mark.parametrize(
    ("sizes", "options", "sinks"),
    [((70, 75, 2, 1, 40, 24), {"causal": True, "window": (33, 0), "softcap": 20.0}, torch.float32),
     ((30, 45, 2, 2, 8, 72), {}, None), ((37, 45, 2, 1, 192, 256), {"causal": True}, None)],
    ids=["all", "none", "wide"],
)  # fmt: skip
@pytest.mark.parametrize(("arch", "name"), [("sm_80", "gathered"), ("sm_120", "registers")])
def test_heads_are_right_where_both_operands_come_from_registers(op: str, sizes, options, sinks, arch, name) -> None:
    lengths = {"max_seqlen_q": sizes[0], "max_seqlen_k": sizes[1]} if "varlen" in op else {}
    if arch == "sm_80" and max(sizes[4:]) > WIDEST:
        sizes = (*sizes[:4], WIDEST, WIDEST)
    example = Example(op, str(sizes), lambda d: heads_of(d, op, torch.bfloat16, sizes, sinks), options | lengths)
    compare(example, arch, f"cutile:{name}")


OF_HEADS = [e for e in gradient_cases() if e.op.startswith("attention")]
TWO_WIDTHS = [e for e in OF_HEADS if "72, 40" in e.text]


@pytest.mark.parametrize("place", range(0, len(OF_HEADS), 3))
def test_gradients_of_heads_are_right_where_both_operands_come_from_registers(place: int) -> None:
    compare(OF_HEADS[place], "sm_120", "cutile:registers")


@pytest.mark.parametrize("name", ["gathered", "gathered_codes"])
@pytest.mark.parametrize("op", ["paged_attention", "paged_attention_lse"])
def test_pages_are_right_where_both_operands_come_from_registers(op: str, name: str) -> None:
    played = [example for example in CALLS[op] if takers(getattr(opmux, op), *example.make("meta"), arch="sm_120",
                                                         backend=f"cutile:{name}", **example.options)]  # fmt: skip
    few = [example for example in played if example.options["max_seqlen_q"] <= 5]
    assert len(few) > 2
    for example in few:
        compare(example, "sm_120", f"cutile:{name}")


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("dims", [(16, 16), (192, 256)], ids=str)
def test_pages_of_narrow_and_wide_heads_are_right_where_both_operands_come_from_registers(dims, stored) -> None:
    new = (1, 7, 1)
    example = Example(
        "paged_attention_lse", f"{dims} {stored}",
        lambda d: paged_of(d, torch.bfloat16, stored, (16, 4, 2, *dims), new, True),
        {"window": (40, 0), "max_seqlen_q": max(new), "max_seqlen_k": max(PAGED_LENGTHS)},
    )  # fmt: skip
    compare(example, "sm_80", "cutile:gathered" if stored == torch.bfloat16 else "cutile:gathered_codes")


@pytest.mark.parametrize(
    ("stored", "new", "options"),
    [(torch.bfloat16, (12, 9, 12), {"causal": True}), (torch.int8, (33, 1, 40), {}),
     (torch.float8_e4m3fn, (33, 1, 40), {"softcap": 20.0})],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("units", [1, 132])
def test_pages_of_wide_heads_are_right_in_tiles_of_more_rows(stored, new, options, units, monkeypatch) -> None:
    """Of 17 to 32 rows, and codes without a causal mask in tiles of 64: with keys that are split, and whole."""
    monkeypatch.setattr(paged, "TYPICAL_UNITS", units)
    lengths = {"max_seqlen_q": max(new), "max_seqlen_k": max(PAGED_LENGTHS)}
    compare(Example("paged_attention_lse", f"{stored} {new}",
                    lambda d: paged_of(d, torch.bfloat16, stored, (16, 4, 2, 160, 256), new, False),
                    options | lengths))  # fmt: skip


@pytest.mark.parametrize("place", range(len(TWO_WIDTHS)))
def test_gradients_of_heads_of_two_widths_are_right_on_blackwell(place: int) -> None:
    compare(TWO_WIDTHS[place], "sm_100")


@pytest.mark.parametrize("op", ["attention", "attention_varlen_lse"])
@pytest.mark.parametrize(("causal", "window"), [(True, (-1, -1)), (False, (-1, 5)), (False, (-1, -1))])
def test_capped_scores_are_right_where_threads_copy_rows(op: str, causal: bool, window: tuple[int, int]) -> None:
    sizes = (130, 135, 2, 1, 64, 32)
    lengths = {"max_seqlen_q": sizes[0], "max_seqlen_k": sizes[1]} if "varlen" in op else {}
    options = {"causal": causal, "window": window, "softcap": 20.0, **lengths}
    example = Example(op, str(sizes), lambda d: heads_of(d, op, torch.bfloat16, sizes, None), options)
    compare(example, "sm_80", "cutile:gathered")


@pytest.mark.parametrize("stored", [torch.float8_e4m3fn, torch.int8], ids=str)
@pytest.mark.parametrize("options", [{}, {"softcap": 20.0}, {"window": (40, 0)}], ids=str)
def test_decoding_from_pages_of_codes_is_right_where_scores_are_found_ahead(stored, options) -> None:
    """Of one sequence without a query, one shorter than a block of keys, and one of several."""
    lengths = {"max_seqlen_q": 1, "max_seqlen_k": max(PAGED_LENGTHS)}
    compare(Example("paged_attention_lse", f"{stored} {options}",
                    lambda d: paged_of(d, torch.bfloat16, stored, (64, 4, 2, 128, 128), (1, 1, 0), True),
                    options | lengths))  # fmt: skip


@pytest.mark.parametrize("op", ops_of("cutile"))
def test_nan_and_infinite_numbers_go_where_the_reference_has_them(op: str) -> None:
    """The conformance suite's own cases, all of them: an infinite number in each argument, of each sign, and NaN."""
    options = {"approximate": "tanh"} if op.startswith("gelu") else {}
    cases = [c for c in cases_of(op, "small") if c.probe != VALUES]
    found = [run_case("cutile", op, replace(c, options={**c.options, **options}).id, "played.launches:on(sm_90)").status
             for c in cases]  # fmt: skip
    assert {c.probe for c in cases} >= {"nan", "inf", "-inf"}
    assert "passed" in found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("first", [0.0, 300.0])
@pytest.mark.parametrize("width", [512, 1000])
def test_gradients_around_a_mean_are_right_far_from_zero(width: int, first: float, dtype: torch.dtype) -> None:
    """The mean is no number of a row, and one number may be far from all others."""

    def make(device: str) -> list[torch.Tensor | None]:
        x, grad, w = (torch.randn(*size, generator=torch.Generator().manual_seed(7)).to(device) for size in
                      ((9, width), (9, width), (width,)))  # fmt: skip
        x[:, 0] += first
        return [grad.flip(1).to(dtype), (x + 40.0).to(dtype), w.to(dtype)]

    compare(Example("layer_norm_backward", f"{width} {first} {dtype}", make))


def test_keys_of_paged_caches_are_split_where_blocks_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    monkeypatch.setattr(paged, "units_of", lambda index: 132)
    monkeypatch.setattr(paged, "splits_of", lambda *given: counted.append(splits_of(*given)) or counted[-1])
    for example in CALLS["paged_attention_lse"][::2]:
        compare(example)
    assert max(counted) == 2  # of at least 256 keys each


@pytest.mark.parametrize("group", [-1, 128, 32])
@pytest.mark.parametrize("op", ["quantize", "silu_and_mul_quantize"])
def test_codes_of_every_tile_are_right(op: str, group: int) -> None:
    """The kernel and the grid of its launch agree on where a block is: in a tile of one group, and of several."""

    def make(device: str) -> list[torch.Tensor | None]:
        width = 1152 if op == "quantize" else 2304
        return [torch.randn(17, width, generator=torch.Generator().manual_seed(5)).to(device, torch.bfloat16)]

    example = Example(op, f"17x1152 {group}", make, {"dtype": torch.int8, "block": (1, group)})
    tensors, wanted = example.make("cpu"), outputs(example, "reference", "cpu")
    with torch.no_grad(), on("sm_90"):
        (taker,) = takers(getattr(opmux, op), *tensors, arch="sm_90", backend="cutile", **example.options)
        tiles = {(config.rows, config.columns): config for config in (taker.config(), *taker.space())}
        for tile, config in tiles.items():
            found = taker.bound(config)(*tensors, **taker.call.options)
            assert not any(difference(example, f, w) for f, w in zip(found, wanted, strict=True)), tile
    assert len(tiles) > 2


@pytest.mark.parametrize("rows", [1, 4])
def test_codes_of_tiles_of_one_group_are_right_where_rows_are_wider(rows: int) -> None:
    """A group is a row of another view of the tensor."""
    x = torch.randn(17, 2048, generator=torch.Generator().manual_seed(5)).to(torch.bfloat16)
    options = {"dtype": torch.int8, "scale_major": "k"}
    with torch.no_grad(), on("sm_90"):
        found = quantization.quantize(x, block=(1, 512), config=GatedConfig(rows, 512), **options)
    wanted = opmux.quantize(x.view(68, 512), block=(1, -1), backend="reference", **options)
    example = Example("quantize", str(rows), lambda d: [x], {})
    assert not any(difference(example, f, w.view_as(f)) for f, w in zip(found, wanted, strict=True))


@pytest.mark.parametrize("kind", ["blocks", "groups"])
@pytest.mark.parametrize("text", ["33x520x272", "130x264x1040"])
def test_products_of_codes_are_right_turned(text: str, kind: str) -> None:
    """Rows of w and rows of x change places; with scales of groups of w's rows another kernel takes the call."""
    (example,) = (example for example in CALLS["scaled_linear"] if example.text == f"{text} {kind}")
    tensors = example.make("cpu")
    with torch.no_grad(), on("sm_90"):
        (taker,) = takers(opmux.scaled_linear, *tensors, arch="sm_90", backend="cutile", **example.options)
        found = taker.bound(TURNED)(*tensors, **taker.call.options)
    (wanted,) = outputs(example, "reference", "cpu")
    assert not difference(example, found, wanted)


@pytest.mark.parametrize("steps", [1, 2, 5, 9])
def test_products_of_codes_are_right_turned_for_each_number_of_steps(steps: int) -> None:
    """As `turned_on_gpu.py` asks for them: all of k, and less than its last block."""
    for size, kind in zip([(192, 256, 128 * steps), (131, 264, 128 * steps - 112)] * 6, kinds(), strict=True):
        with torch.no_grad(), on("sm_90"):
            assert not one("cpu", size, kind)
