"""Gradients of grouped weights by the kernel's own text on the CPU; broken ones must fail."""

from dataclasses import replace

import pytest
import torch
from played.running import Operands, Stopped, build, run

from opmux_deepgemm.configs import Config
from opmux_deepgemm.generation import source
from opmux_deepgemm.generation.source import Product
from opmux_deepgemm.summing import gradient


def given(rows: tuple[int, ...], n: int, k: int, spare: int = 0) -> Operands:
    """Groups of so many rows; what belongs to no group is NaN."""
    torch.manual_seed(sum(rows) + n + k)
    sizes = torch.tensor(rows, dtype=torch.int32)
    offsets = torch.zeros(len(rows) + 1, dtype=torch.int32)
    offsets[1:] = torch.cumsum(sizes + spare, 0)
    dy, x = (torch.full((int(offsets[-1]) + 3, width), float("nan")).bfloat16() for width in (n, k))
    for begin, size in zip(offsets.tolist(), rows, strict=False):
        dy[begin : begin + size] = torch.randn(size, n).bfloat16()
        x[begin : begin + size] = torch.randn(size, k).bfloat16()
    added_to = torch.randn(len(rows), n, k)
    return Operands(dy, x, offsets=offsets, sizes=sizes if spare else None, added_to=added_to)


def wrong(found: torch.Tensor, operands: Operands, rows: tuple[int, ...]) -> int:
    """How many elements are further from float64 than roundings explain."""
    assert operands.added_to is not None
    assert operands.offsets is not None
    wanted, size = operands.added_to.double(), torch.zeros(found.shape, dtype=torch.float64)
    for group, (begin, count) in enumerate(zip(operands.offsets.tolist(), rows, strict=False)):
        dy, x = (tensor[begin : begin + count].double() for tensor in (operands.x, operands.w))
        wanted[group] += dy.T @ x
        size[group] = dy.abs().T @ x.abs()
    bound = wanted.abs() * 2.0**-22 + size * 2.0**-20 + 1e-6
    return int(((found.double() - wanted).abs() <= bound).logical_not().sum())  # NaN counts


def product(operands: Operands) -> Product:
    assert operands.added_to is not None
    return gradient(*operands.added_to.shape[1:], operands.x, operands.w)


@pytest.mark.parametrize(
    ("rows", "n", "k", "spare", "config"),
    [
        ((5, 0, 130, 64, 1), 72, 136, 0, Config("large", 128, 64, 2, 2)),
        ((70, 9), 200, 72, 2, Config("large", 64, 128, 3, 1)),
        ((65, 0, 128), 264, 200, 1, Config("large", 256, 64, 2, 2)),
        ((40, 3), 128, 192, 0, Config("large", 128, 192, 3, 2)),
        ((0, 0), 72, 72, 4, Config("large", 64, 64, 2, 1)),
    ],
    ids=["many groups", "one consumer", "256 columns", "wide", "no rows"],
)
def test_rows_of_each_group_are_summed(rows, n, k, spare, config, tmp_path) -> None:
    operands = given(rows, n, k, spare)
    program = build(product(operands), config, operands, tmp_path)
    for seed in (0, 1):
        assert wrong(run(program, product(operands), config, operands, seed), operands, rows) == 0


def turned(rows: torch.Tensor, spare: int) -> torch.Tensor:
    """The same rows, next to each other; columns begin at multiples of 8, with NaN behind their rows."""
    m, width = rows.shape
    room = torch.full((width, -(-m // 8) * 8 + spare), float("nan"), dtype=rows.dtype)
    return room[:, :m].copy_(rows.T).T


FORMS = {"dy turned": (True, False), "x turned": (False, True), "both turned": (True, True)}
ANYWHERE = (65, 2, 129, 1, 8, 0, 64, 1, 3)
"""Rows of groups which with one row between them begin at each place modulo 8."""


def test_groups_begin_anywhere() -> None:
    begins = given(ANYWHERE, 8, 8, 1).offsets
    assert begins is not None
    assert {int(begin) % 8 for begin, size in zip(begins, ANYWHERE, strict=False) if size} == set(range(8))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("rows", "n", "k", "spare", "config", "poisoned"),
    [
        (ANYWHERE, 72, 72, 1, Config("large", 64, 64, 2, 1), 4),
        ((5, 0, 130, 64, 1), 72, 136, 0, Config("large", 128, 64, 2, 2), 2),
        ((70, 9, 57), 200, 72, 2, Config("large", 64, 128, 3, 1), 0),
        ((65, 0, 128), 264, 200, 1, Config("large", 256, 64, 2, 2), None),
        ((41, 22, 3), 128, 192, 0, Config("large", 128, 192, 3, 2), 1),
        ((0, 0), 72, 72, 4, Config("large", 64, 64, 2, 1), None),
        ((70,), 72, 72, 0, Config("large", 64, 64, 2, 1), None),
        ((1,), 72, 72, 0, Config("large", 64, 64, 2, 1), None),
    ],
    ids=["anywhere", "many groups", "one consumer", "256 columns", "wide", "no rows", "one group", "one row"],
)
def test_operands_may_be_turned(rows, n, k, spare, config, poisoned, form, tmp_path) -> None:
    """Rows of no group are NaN, and so is one group; its neighbours' sums are right."""
    plain = given(rows, n, k, spare)
    assert plain.offsets is not None
    assert plain.added_to is not None
    if poisoned is not None:
        begin = int(plain.offsets[poisoned])
        for operand in (plain.x, plain.w):
            operand[begin : begin + rows[poisoned]] = float("nan")
    dy, x = (turned(one, 8) if yes else one for one, yes in zip((plain.x, plain.w), FORMS[form], strict=True))
    operands = replace(plain, x=dy, w=x)
    made = product(operands)
    assert (made.dy_turned, made.x_turned) == FORMS[form]
    program = build(made, config, operands, tmp_path)
    for seed in (0, 1):
        found = run(program, made, config, operands, seed)
        if poisoned is not None:
            assert bool(found[poisoned].isnan().all())
            counted = tuple(0 if group == poisoned else size for group, size in enumerate(rows))
            found[poisoned] = plain.added_to[poisoned]
        else:
            counted = rows
        assert wrong(found, operands, counted) == 0


@pytest.mark.parametrize(
    "edit",
    [
        ("if (first > 0 || left < BLOCK_ROWS) {", "if (left < BLOCK_ROWS) {"),
        ("if (first > 0 || left < BLOCK_ROWS) {", "if (first > 0) {"),
        ("keep_rows<X_TURNED, X_CHUNKS>(x_at, first, left, thread, 128 * CONSUMERS);", ""),
        ("keep_rows<DY_TURNED, PARTS>(dy_at, first, left, thread % 128, 128);", ""),
        ("kept ? load_shared_word(at) & kept : 0", "0"),
        ("walk.start -= walk.lead;", ""),
        ("row < from || row >= to", "row >= to"),
    ],
    ids=["rows before", "rows behind", "of x", "of dy", "of two in a word", "a copy begins anywhere", "of rows"],
)
def test_a_broken_kernel_of_turned_operands_fails(edit, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {file: source.read(file) for file in ("gradients.cuh", "layouts.cuh")}
    assert edit[0] in whole["gradients.cuh"]
    broken = whole | {"gradients.cuh": whole["gradients.cuh"].replace(*edit)}
    monkeypatch.setattr(source, "read", broken.__getitem__)
    rows, config = (67, 70), Config("large", 128, 64, 2, 2)
    plain = given(rows, 136, 72, 2)
    operands = replace(plain, w=turned(plain.w, 0))
    program, found = build(product(operands), config, operands, tmp_path), []
    for seed in (0, 1):
        try:
            found.append(wrong(run(program, product(operands), config, operands, seed), operands, rows))
        except Stopped as error:
            found.append("not aligned to 16 bytes" in str(error))
    assert any(found)


@pytest.mark.parametrize(
    "edit",
    [
        ("if (left < BLOCK_ROWS) {", "if (false) {"),
        ("clear_rows<X_CHUNKS>(x_at, left, thread, 128 * CONSUMERS);", ""),
        ("products_wait<1>();", "products_wait<2>();"),
        ("const float* pair = &values[4 * (first + j) + 2 * half];", "const float* pair = &values[4 * j + 2 * half];"),
    ],
    ids=["rows of no group", "of x alone", "a stage is freed before it is read", "the first slice again"],
)
def test_a_broken_kernel_fails(edit, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {file: source.read(file) for file in ("gradients.cuh", "layouts.cuh")}
    assert edit[0] in whole["gradients.cuh"]
    broken = whole | {"gradients.cuh": whole["gradients.cuh"].replace(*edit)}
    monkeypatch.setattr(source, "read", broken.__getitem__)
    rows, config = (300, 70), Config("large", 128, 64, 2, 2)
    operands = given(rows, 136, 72)
    program = build(product(operands), config, operands, tmp_path)
    found = [wrong(run(program, product(operands), config, operands, seed), operands, rows) for seed in (0, 1)]
    assert any(found)
