"""Gradients of grouped weights by the kernel's own text on the CPU; broken ones must fail."""

import pytest
import torch
from played.running import Operands, build, run

from opmux_deepgemm.configs import Config
from opmux_deepgemm.generation import source
from opmux_deepgemm.generation.source import Product


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
    return Product("bfloat16", "float32", operands.x.shape[1], operands.w.shape[1], groups="ragged", accumulate=True)


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
