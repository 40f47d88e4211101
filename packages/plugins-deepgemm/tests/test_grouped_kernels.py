"""Grouped products by the kernel's own text on the CPU; rows that belong to no group must stay as they were."""

import itertools
from dataclasses import replace

import pytest
import torch
from played.running import Operands, Stopped, build, run

from opmux_deepgemm.configs import Config
from opmux_deepgemm.generation import source
from opmux_deepgemm.operand_maps import with_scales

BF16, F32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn


def integers(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def codes(tensor: torch.Tensor, fp8: bool) -> torch.Tensor:
    return tensor.to(FP8) if fp8 else tensor.bfloat16()


def ragged(offsets: torch.Tensor, sizes: torch.Tensor | None, n: int, k: int, fp8: bool = False) -> Operands:
    groups, m, blocks = len(offsets) - 1, int(offsets[-1]) + 3, -(-k // 128)
    torch.manual_seed(m + n + k)
    x, w = codes(torch.randn(m, k), fp8), codes(torch.randn(groups, n, k), fp8)
    if not fp8:
        return Operands(x, w, offsets=offsets, sizes=sizes)
    x_scale, w_scale = torch.rand(blocks, m).t() + 0.5, torch.rand(groups, -(-n // 128), blocks) + 0.5
    return Operands(x, w, x_scale, w_scale, offsets=offsets, sizes=sizes)


def masked(counts: torch.Tensor, max_m: int, n: int, k: int, fp8: bool = False) -> Operands:
    groups, blocks = len(counts), -(-k // 128)
    torch.manual_seed(max_m + n + k)
    x, w = codes(torch.randn(groups, max_m, k), fp8), codes(torch.randn(groups, n, k), fp8)
    if not fp8:
        return Operands(x, w, sizes=counts)
    x_scale, w_scale = torch.rand(groups, max_m, blocks) + 0.5, torch.rand(groups, -(-n // 128), blocks) + 0.5
    return Operands(x, w, x_scale, w_scale, sizes=counts)


def rows_of(given: Operands) -> list[tuple[int, slice]]:
    """For each group where its rows lie in the matrix of all of them."""
    if given.offsets is None:
        size = given.x.shape[1]
        return [(g, slice(g * size, g * size + count)) for g, count in enumerate(given.sizes.tolist())]
    offsets = given.offsets.tolist()
    sizes = [b - a for a, b in itertools.pairwise(offsets)] if given.sizes is None else given.sizes.tolist()
    return [(g, slice(offsets[g], offsets[g] + size)) for g, size in enumerate(sizes)]


def wrong(found: torch.Tensor, given: Operands) -> int:
    """How many elements are further from float64 than roundings explain, or were written and belong to no group."""
    k = given.x.shape[-1]
    flat = found.flatten(0, -2)
    x, outside, failures = given.x.double().reshape(-1, k), torch.ones(len(flat), dtype=torch.bool), 0
    if given.x_scale is not None:
        x = x * given.x_scale.double().reshape(len(x), -1).repeat_interleave(128, 1)[:, :k]
    for group, rows in rows_of(given):
        w = given.w[group].double()
        if given.w_scale is not None:
            scale = given.w_scale[group].double().repeat_interleave(128, 1)[:, :k]
            w = w * scale.repeat_interleave(128, 0)[: len(w)]
        wanted = x[rows] @ w.T
        bound = wanted.abs() * (2.0**-8 if found.dtype == BF16 else 2.0**-22) + x[rows].abs() @ w.abs().T * 2.0**-20
        failures += int(((flat[rows].double() - wanted).abs() <= bound).logical_not().sum())
        outside[rows] = False
    return failures + int(flat[outside].isnan().logical_not().sum())  # results are poisoned with NaN


@pytest.mark.parametrize(
    ("given", "config", "out"),
    [
        (ragged(integers(0, 70, 70, 199, 200), None, 136, 136), Config("large", 64, 64, 2, 1, 1, 8), BF16),
        (ragged(integers(0, 128, 384), integers(100, 130), 72, 192), Config("large", 128, 96, 2, 2, 2, 1), BF16),
        (ragged(integers(0, 64, 200), None, 136, 272, fp8=True), Config("large", 128, 96, 2, 2, 1, 8), BF16),
        (ragged(integers(0, 3, 300), None, 200, 144, fp8=True), Config("large", 128, 192, 3, 2, 2, 8), F32),
        (masked(integers(0, 130, 64, 5), 130, 136, 72), Config("large", 128, 160, 3, 2, 2, 8), BF16),
        (masked(integers(70, 1, 64), 72, 136, 272, fp8=True), Config("large", 64, 96, 2, 1, 1, 8), F32),
        (ragged(integers(0, 3, 150), None, 200, 272, fp8=True), Config("large", 64, 48, 2, 1, 2, 8, 0, 1, True), BF16),
        (masked(integers(70, 130), 136, 328, 272, fp8=True), Config("large", 128, 64, 2, 2, 4, 8, 0, 2, True), BF16),
        (masked(integers(0, 0), 16, 72, 144, fp8=True), Config("large", 64, 32, 2, 1, 1, 8), BF16),
        (ragged(integers(0, 3, 300), None, 200, 144, fp8=True), Config("large", 128, 96, 2, 2, 2, staged=True), BF16),
        (masked(integers(70, 1, 130), 136, 136, 272, fp8=True), Config("large", 128, 64, 2, 2, staged=True), BF16),
    ],
    ids=[
        "ragged", "ragged, padding, two blocks share w", "ragged codes", "ragged codes, two blocks share w", "masked",
        "masked codes", "ragged codes, two blocks share x", "masked codes, four blocks share x", "no rows at all",
        "whole results of ragged codes", "whole results of masked codes",
    ],
)  # fmt: skip
def test_each_group_is_multiplied_by_its_own_weight(given, config, out, tmp_path) -> None:
    product = given.product(out)
    program = build(product, config, given, tmp_path)
    for seed in (0, 1):
        assert wrong(run(program, product, config, given, seed), given) == 0


def lying(given: Operands, lie: str) -> Operands:
    """The same product, its scales of x in rows or in columns of multiples of four rows."""
    scales = given.x_scale
    if lie == "rows":
        return replace(given, x_scale=scales.contiguous())
    *matrices, m, blocks = scales.shape
    return replace(given, x_scale=scales.new_zeros(*matrices, blocks, -(-m // 4) * 4)[..., :m].copy_(scales.mT).mT)


@pytest.mark.parametrize("lie", ["rows", "columns"])
@pytest.mark.parametrize(
    ("given", "config", "out"),
    [
        (ragged(integers(0, 3, 300), None, 264, 512, fp8=True), Config("large", 128, 256, 2, 2, 1, 8, 0, 2), BF16),
        (
            ragged(integers(0, 129, 131, 384), integers(100, 0, 130), 200, 1024, fp8=True),
            Config("large", 128, 192, 3, 2, 2, 8, staged=True), BF16,
        ),
        (masked(integers(70, 0, 130), 137, 264, 512, fp8=True), Config("large", 128, 96, 2, 2, 2, 8, 0, 0, True), F32),
        (masked(integers(0, 0), 16, 72, 512, fp8=True), Config("large", 64, 32, 2, 1, 1, 8), BF16),
        (
            ragged(integers(0, 201, 203, 539), None, 136, 512, fp8=True),
            Config("large", 256, 128, 2, 2, 1, 8, 0, 1, staged=True), BF16,
        ),
    ],
    ids=["ragged", "ragged, padding, two blocks share w", "masked, two blocks share x", "no rows at all", "256 rows"],
)  # fmt: skip
def test_scales_of_groups_may_be_copied(given, config, out, lie, tmp_path) -> None:
    given, config = lying(given, lie), replace(config, copied_scales=True)
    product = with_scales(given.product(out), config, given.x_scale, given.w_scale)
    assert (product.x_scales, product.w_together) == (lie, True)
    program = build(product, config, given, tmp_path)
    for seed in (0, 1):
        assert wrong(run(program, product, config, given, seed), given) == 0


def test_copies_of_scales_of_a_group_begin_at_four_rows(tmp_path, monkeypatch) -> None:
    text = {file: source.read(file) for file in ("large.cuh", "layouts.cuh")}
    edited = text["large.cuh"].replace("SPARE ? row - row % 4 : row", "row")
    assert edited != text["large.cuh"]
    monkeypatch.setattr(source, "read", (text | {"large.cuh": edited}).__getitem__)
    given = lying(ragged(integers(0, 3, 150), None, 72, 512, fp8=True), "columns")
    config = Config("large", 64, 64, 2, 1, copied_scales=True)
    product = with_scales(given.product(BF16), config, given.x_scale, given.w_scale)
    with pytest.raises(Stopped, match="column not aligned to 16 bytes"):
        run(build(product, config, given, tmp_path), product, config, given, 0)


def across(w: torch.Tensor, spare: int) -> torch.Tensor:
    """The same weights, across k, with gaps of NaN between columns; the gaps lie behind the rows of each column."""
    groups, n, k = w.shape
    room = torch.full((groups, k, n + spare), float("nan"), dtype=w.dtype)
    return room[:, :, :n].copy_(w.mT).mT


@pytest.mark.parametrize(
    ("given", "config"),
    [
        (ragged(integers(0, 70, 70, 199, 200), None, 136, 136), Config("large", 64, 64, 2, 1, 1, 8)),
        (ragged(integers(0, 128, 384), integers(100, 130), 72, 200), Config("large", 128, 128, 2, 2, 2, 1)),
        (ragged(integers(0, 1, 130), None, 24, 72), Config("large", 64, 64, 2, 1, 1, 8)),
        (masked(integers(0, 130, 64, 5), 130, 136, 72), Config("large", 128, 192, 2, 2, 1, 8)),
        (masked(integers(300, 0, 257), 300, 264, 136), Config("large", 256, 128, 2, 2, 2, 8)),
        (ragged(integers(0, 90), None, 72, 72), Config("large", 64, 64, 2, 1, 1, 8)),
    ],
    ids=[
        "ragged",
        "ragged, padding, two blocks share w",
        "narrow",
        "masked",
        "masked, two blocks share w",
        "one group",
    ],
)
@pytest.mark.parametrize("spare", [0, 8])
def test_the_weights_of_groups_may_lie_across_k(given, config, spare, tmp_path) -> None:
    if len(given.w) > 1:
        given.w[-1] = float("nan")  # nothing of it may come into the groups before
    turned = replace(given, w=across(given.w, spare))
    product = turned.product(BF16)
    assert product.groups_across
    program = build(product, config, turned, tmp_path)
    last = rows_of(given)[-1][1]
    for seed in (0, 1):
        found = run(program, product, config, turned, seed)
        if len(given.w) > 1:
            flat = found.flatten(0, -2)
            assert bool(flat[last].isnan().all())
            flat[last] = 0
            alike = replace(given, w=torch.cat([given.w[:-1], torch.zeros_like(given.w[-1:])]))
        else:
            alike = given
        assert wrong(found, alike) == 0


def turned_x(x: torch.Tensor, spare: int) -> torch.Tensor:
    """The same rows, across k, with gaps of NaN behind the rows of each column, which begin at multiples of 8."""
    whole = -(-x.shape[-2] // 8) * 8 + spare
    room = torch.full((*x.shape[:-2], x.shape[-1], whole), float("nan"), dtype=x.dtype)
    return room[..., : x.shape[-2]].copy_(x.mT).mT


RESIDUES = integers(1, 66, 76, 83, 213, 214, 223, 288, 354, 354), integers(65, 2, 7, 129, 1, 8, 64, 65, 0)
"""Where groups begin, one at each place modulo 8, and their rows."""
EMPTY = integers(0, 0, 7, 7, 8, 137, 137), None


def test_groups_begin_anywhere() -> None:
    begins, sizes = RESIDUES
    assert {int(begin) % 8 for begin, size in zip(begins, sizes, strict=False) if size} == set(range(8))


@pytest.mark.parametrize("w_across", [False, True])
@pytest.mark.parametrize(
    ("given", "config", "poisoned"),
    [
        (ragged(*RESIDUES, 72, 72), Config("large", 64, 64, 2, 1, 1, 8), 3),
        (ragged(*RESIDUES, 136, 136), Config("large", 128, 128, 2, 2, 2, 1), 0),
        (ragged(*EMPTY, 72, 200), Config("large", 128, 64, 2, 2), 2),
        (ragged(integers(5, 262), None, 72, 72), Config("large", 256, 64, 2, 2), None),
        (masked(integers(0, 130, 64, 5), 130, 136, 72), Config("large", 128, 192, 2, 2, 1, 8), 1),
        (masked(integers(300, 0, 257), 300, 264, 136), Config("large", 256, 128, 2, 2, 2, 8), 0),
        (masked(integers(70), 75, 72, 72), Config("large", 64, 64, 2, 1, 1, 8), None),
        (ragged(integers(0, 0, 0), None, 72, 72), Config("large", 64, 64, 2, 1, 1, 8), None),
        (masked(integers(0, 0), 16, 72, 72), Config("large", 64, 64, 2, 1, 1, 8), None),
    ],
    ids=[
        "ragged", "ragged, two blocks share w", "ragged, groups without rows", "ragged, one group",
        "masked", "masked, two blocks share w", "masked, one group", "ragged, no rows at all", "masked, no rows at all",
    ],
)  # fmt: skip
def test_the_rows_of_groups_may_lie_across_k(given, config, poisoned, w_across, tmp_path) -> None:
    """Rows of no group are NaN, and so is one group; its neighbours' results are right."""
    places = dict(rows_of(given))
    given = replace(given, x=given.x.clone())
    rows = given.x.view(-1, given.x.shape[-1])
    of_groups = torch.zeros(len(rows), dtype=torch.bool)
    for place in places.values():
        of_groups[place] = True
    rows[~of_groups] = float("nan")
    if poisoned is not None:
        rows[places[poisoned]] = float("nan")
    w = across(given.w, 8) if w_across else given.w
    turned = replace(given, x=turned_x(given.x, 8), w=w)
    product = turned.product(BF16)
    assert (product.x_across, product.w_across) == (True, w_across)
    program = build(product, config, turned, tmp_path)
    for seed in (0, 1):
        found = run(program, product, config, turned, seed)
        flat = found.flatten(0, -2)
        assert bool((flat[~of_groups].view(torch.int16) == -1).all())  # not written
        if poisoned is not None:
            assert bool(flat[places[poisoned]].isnan().all())
            flat[places[poisoned]] = rows[places[poisoned]] = 0
        assert wrong(found, given) == 0
        if poisoned is not None:
            rows[places[poisoned]] = float("nan")


@pytest.mark.parametrize(
    ("given", "edit"),
    [
        (ragged(*RESIDUES, 72, 72), ("if (inside < first) continue;", "")),
        (ragged(*RESIDUES, 72, 72), ("walk.rows += walk.lead;", "")),
        (ragged(*RESIDUES, 72, 72), ("walk.start -= walk.lead;", "")),
        (
            masked(integers(70, 30), 72, 72, 72),
            ("if constexpr (GROUPS == MASKED) tma_load_of(to, x_map, barrier, row, column, group);\n  else ", ""),
        ),
    ],
    ids=["rows of the group before are stored", "the last rows are not", "a copy begins anywhere", "no matrices"],
)
def test_a_kernel_whose_x_lies_across_k_and_is_broken_fails(given, edit, tmp_path, monkeypatch) -> None:
    whole = {file: source.read(file) for file in ("large.cuh", "layouts.cuh")}
    assert edit[0] in whole["large.cuh"]
    broken = whole | {"large.cuh": whole["large.cuh"].replace(*edit)}
    monkeypatch.setattr(source, "read", broken.__getitem__)
    turned, config = replace(given, x=turned_x(given.x, 0)), Config("large", 64, 64, 2, 1)
    product = turned.product(BF16)
    program = build(product, config, turned, tmp_path)
    failed = []
    for seed in (0, 1):
        try:
            failed.append(wrong(run(program, product, config, turned, seed), given))
        except Stopped as error:
            failed.append("not aligned to 16 bytes" in str(error))
    assert any(failed)


def test_counts_that_are_too_large_do_not_reach_past_the_rows(tmp_path) -> None:
    given = masked(integers(30, 70), 32, 72, 72)
    config, product = Config("large", 64, 64, 2, 1), given.product(BF16)
    found = run(build(product, config, given, tmp_path), product, config, given, 0)
    kept = Operands(given.x, given.w, sizes=integers(30, 32))
    assert wrong(found, kept) == 0


def test_a_negative_offset_does_not_reach_before_the_rows(tmp_path) -> None:
    given = ragged(integers(-64, 64, 130), None, 72, 72)
    config, product = Config("large", 64, 64, 2, 1), given.product(BF16)
    found = run(build(product, config, given, tmp_path), product, config, given, 0)
    kept = Operands(given.x, given.w, offsets=integers(0, 64, 130), sizes=integers(0, 66))
    assert wrong(found, kept) == 0
