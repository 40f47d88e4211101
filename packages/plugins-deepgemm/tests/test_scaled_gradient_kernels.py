"""Gradients of grouped weights from codes, by the kernel's own text on the CPU; broken ones must fail."""

import pytest
import torch
from played.running import Operands, Stopped, build, run
from torch import Tensor

from opmux_deepgemm.configs import Config
from opmux_deepgemm.generation import source
from opmux_deepgemm.generation.source import Product


def across(rows: int, columns: int) -> Tensor:
    """Codes that are NaN, those of neighbouring rows next to each other."""
    room = torch.full((columns, -(-rows // 16) * 16), 0x7F, dtype=torch.uint8)
    return room.view(torch.float8_e4m3fn).T[:rows]


def given(rows: tuple[int, ...], n: int, k: int, spare: int = 0, first: int = 0) -> Operands:
    """Groups of so many rows, the first of which begins at a row; what belongs to no group is NaN."""
    torch.manual_seed(sum(rows) + n + k)
    sizes = torch.tensor(rows, dtype=torch.int32)
    offsets = torch.full((len(rows) + 1,), first, dtype=torch.int32)
    offsets[1:] += torch.cumsum(sizes + spare, 0)
    m = int(offsets[-1]) + 3
    dy, x = across(m, n), across(m, k)
    used = torch.zeros(-(-m // 128) * 128, dtype=torch.bool)
    for begin, size in zip(offsets.tolist(), rows, strict=False):
        for codes in (dy, x):
            drawn = torch.randn(size, codes.shape[1]).to(torch.float8_e4m3fn)
            codes.view(torch.uint8)[begin : begin + size] = drawn.view(torch.uint8)
        used[begin : begin + size] = True
    dy_scale, x_scale = torch.rand(-(-m // 128), n) + 0.5, (torch.rand(k, -(-m // 128)) + 0.5).T
    for scale in (dy_scale, x_scale):
        scale[~used.view(-1, 128).any(1)] = float("nan")
    added_to = torch.randn(len(rows), n, k)
    return Operands(dy, x, dy_scale, x_scale, None, offsets, sizes if spare else None, added_to)


def real(codes: Tensor, scale: Tensor | None) -> Tensor:
    assert scale is not None
    return codes.double() * scale.double().repeat_interleave(128, 0)[: len(codes)]


def wrong(found: Tensor, operands: Operands, rows: tuple[int, ...]) -> int:
    """How many elements are further from float64 than roundings explain."""
    assert operands.added_to is not None
    assert operands.offsets is not None
    dy, x = real(operands.x, operands.x_scale), real(operands.w, operands.w_scale)
    wanted, size = operands.added_to.double(), torch.zeros(found.shape, dtype=torch.float64)
    for group, (begin, count) in enumerate(zip(operands.offsets.tolist(), rows, strict=False)):
        left, right = dy[begin : begin + count], x[begin : begin + count]
        wanted[group] += left.T @ right
        size[group] = left.abs().T @ right.abs()
    bound = wanted.abs() * 2.0**-22 + size * 2.0**-20 + 1e-6
    return int(((found.double() - wanted).abs() <= bound).logical_not().sum())  # NaN counts


def product(operands: Operands) -> Product:
    n, k = operands.x.shape[1], operands.w.shape[1]
    return Product("float8_e4m3fn", "float32", n, k, groups="ragged", accumulate=True)


@pytest.mark.parametrize(
    ("rows", "n", "k", "spare", "config"),
    [
        ((128, 0, 256, 384), 72, 132, 0, Config("large", 128, 64, 2, 2)),
        ((5, 0, 130, 64, 1, 257), 72, 136, 0, Config("large", 128, 64, 2, 2, group=2)),
        ((70, 9, 200), 200, 72, 2, Config("large", 64, 128, 3, 1)),
        ((65, 0, 300), 264, 200, 1, Config("large", 256, 64, 2, 2, 2, 2)),
        ((140, 3), 130, 192, 0, Config("large", 128, 192, 3, 2, 2, 1, 3)),
        ((400, 3), 136, 100, 5, Config("large", 128, 96, 2, 2, alternate=4)),
        ((0, 0), 72, 72, 4, Config("large", 64, 64, 2, 1)),
    ],
    ids=["whole blocks", "many groups", "one consumer", "clusters", "clusters in turns", "turns", "no rows"],
)
def test_codes_of_each_group_are_summed(rows, n, k, spare, config, tmp_path) -> None:
    operands = given(rows, n, k, spare)
    program = build(product(operands), config, operands, tmp_path)
    for seed in (0, 1):
        found = run(program, product(operands), config, operands, seed, units=4)
        assert wrong(found, operands, rows) == 0


@pytest.mark.parametrize(
    "edit",
    [
        ("if (begin < walk.start || begin + BLOCK_ROWS > walk.stop) {", "if (false) {"),
        ("begin < walk.start || begin + BLOCK_ROWS > walk.stop", "begin + BLOCK_ROWS > walk.stop"),
        ("clear_rows<BLOCK_N>(x_at, walk.start - begin, walk.stop - begin, thread, 128 * CONSUMERS);", ""),
        ("column + (walk.first + block) * x_scale_block", "column + block * x_scale_block"),
        ("barrier_init(full + 8 * i, 33);", "barrier_init(full + 8 * i, 1);"),
        ("store_shared_word(at, kept ? load_shared_word(at) & kept : 0);", "store_shared_word(at, 0);"),
        ("          fence_async_shared();\n          sync_threads(CLEARED", "          sync_threads(CLEARED"),
    ],
    ids=[
        "rows of no group", "rows before the group", "of x alone", "scales of the first group",
        "scales are not waited for", "four rows at once", "no fence",
    ],
)  # fmt: skip
def test_a_broken_kernel_fails(edit, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {file: source.read(file) for file in ("scaled_gradients.cuh", "layouts.cuh")}
    text = whole["scaled_gradients.cuh"]
    if edit[0] not in text:
        pytest.fail(f"the kernel has no {edit[0]}")
    broken = whole | {"scaled_gradients.cuh": text.replace(*edit)}
    monkeypatch.setattr(source, "read", broken.__getitem__)
    rows, config = (301, 102), Config("large", 128, 64, 2, 2)
    operands = given(rows, 136, 72)
    program = build(product(operands), config, operands, tmp_path)

    def is_wrong(seed: int) -> bool:
        try:
            return wrong(run(program, product(operands), config, operands, seed), operands, rows) > 0
        except Stopped:
            return True

    assert any(is_wrong(seed) for seed in (0, 1))
