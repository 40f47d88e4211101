"""The kernels' own text, run on the CPU with the instructions played; broken ones must fail."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from played.running import Operands, Stopped, build, run

from opmux_deepgemm.configs import Config
from opmux_deepgemm.generation import source
from opmux_deepgemm.operand_maps import with_scales

SEEDS = (0, 1)
"""As late as possible, and at once."""


def operands(m: int, n: int, k: int, *, fp8: bool = False, bias: bool = False, by_columns: bool = False) -> Operands:
    torch.manual_seed(m + n + k)
    x, w = torch.randn(m, k), torch.randn(n, k)
    shift = torch.randn(n).bfloat16() if bias else None
    if not fp8:
        return Operands(x.bfloat16(), w.bfloat16(), bias=shift)
    blocks = -(-k // 128)
    x_scale = torch.rand(blocks, m).t() + 0.5 if by_columns else torch.rand(m, blocks) + 0.5
    w_scale = torch.rand(-(-n // 128), blocks) + 0.5
    return Operands(x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn), x_scale, w_scale, shift)


def wrong(found: torch.Tensor, given: Operands) -> int:
    """How many elements are further from float64 than roundings explain."""
    x, w = given.x.double(), given.w.double()
    if given.x_scale is not None and given.w_scale is not None:
        (_, k), n = x.shape, len(w)
        x = x * given.x_scale.double().repeat_interleave(128, 1)[:, :k]
        w = w * given.w_scale.double().repeat_interleave(128, 1)[:, :k].repeat_interleave(128, 0)[:n]
    wanted = x @ w.T
    if given.bias is not None:
        wanted = wanted + given.bias.double()
    rounding = 2.0**-8 if found.dtype == torch.bfloat16 else 2.0**-22
    bound = wanted.abs() * rounding + x.abs() @ w.abs().T * 2.0**-20
    return int(((found.double() - wanted).abs() <= bound).logical_not().sum())  # NaN counts


BF16, F32 = torch.bfloat16, torch.float32


@pytest.mark.parametrize(
    ("given", "config", "out"),
    [
        (operands(1, 72, 192), Config("large", 64, 64, 2, 1, 1, 8), BF16),
        (operands(130, 136, 136, bias=True), Config("large", 256, 96, 2, 2, 1, 1), F32),
        (operands(300, 168, 72), Config("large", 128, 160, 4, 2, 2, 1), BF16),
        (operands(130, 136, 272, fp8=True, bias=True), Config("large", 128, 96, 2, 2, 1, 8), BF16),
        (operands(130, 200, 144, fp8=True, by_columns=True), Config("large", 128, 192, 3, 2, 2, 8), F32),
        (operands(200, 136, 656, fp8=True), Config("large", 128, 96, 3, 2, 1, 8, 3), BF16),
        (operands(130, 72, 400, fp8=True), Config("large", 128, 64, 2, 2, 1, 8, 2), BF16),
        (operands(300, 72, 272, fp8=True), Config("large", 256, 64, 2, 2, 2, 8, 4), F32),
        (operands(200, 136, 656, fp8=True), Config("large", 128, 192, 3, 2, 1, 8, 0, 2), BF16),
        (operands(300, 72, 400, fp8=True, bias=True), Config("large", 256, 64, 2, 2, 2, 8, 0, 1), BF16),
        (operands(100, 264, 528, fp8=True), Config("large", 128, 256, 2, 2, 1, 8, 0, 4), F32),
        (operands(130, 136, 400, fp8=True), Config("large", 256, 128, 2, 2, 1, 8, 0, 1), BF16),
        (operands(70, 104, 144, fp8=True), Config("large", 64, 48, 2, 1, 1, 8, 0, 3), BF16),
        (operands(70, 104, 912, fp8=True), Config("large", 64, 32, 3, 1, 1, 8, 0, 1), BF16),
        (operands(130, 72, 656, fp8=True), Config("large", 128, 64, 2, 2, 2, 8, 0, 1, True), BF16),
        (operands(130, 200, 136, bias=True), Config("large", 128, 48, 2, 2, 2, 1, share_x=True), BF16),
        (operands(130, 200, 136, bias=True), Config("large", 64, 96, 2, 1, 1, 8, staged=True), BF16),
        (operands(300, 328, 400, fp8=True), Config("large", 256, 80, 2, 2, 2, 8, 0, 1, True, True), BF16),
        (operands(300, 328, 272, fp8=True), Config("large", 128, 128, 2, 2, 1, 1, 0, 2, staged=True), BF16),
        (operands(130, 328, 400, fp8=True), Config("large", 256, 48, 3, 2, 4, 8, 0, 1, share_x=True), BF16),
        (operands(300, 72, 272, fp8=True), Config("large", 64, 32, 2, 1, 4, 8), BF16),
        (operands(3, 136, 520, bias=True), Config("small", 8, 128, 2, 2, 4), BF16),
        (operands(17, 136, 656, fp8=True, by_columns=True), Config("small", 16, 64, 2, 1, 2), F32),
        (operands(9, 72, 144, fp8=True, bias=True), Config("small", 16, 64, 2, 1, 8), BF16),
        (operands(45, 136, 520, bias=True), Config("small", 24, 64, 2, 1, 4), BF16),
        (operands(70, 136, 1296, fp8=True), Config("small", 40, 64, 2, 1, 1), BF16),
        (operands(3, 136, 2448, fp8=True), Config("small", 8, 128, 3, 2, 2), BF16),
    ],
    ids=[
        "one row", "256 rows", "two blocks share w", "codes", "codes, two blocks share w",
        "codes, by turns", "codes, by short turns", "codes, by turns, two blocks share w",
        "codes, in halves of columns", "codes, in halves of rows, two blocks share w", "codes, in quarters",
        "codes, rows one after the other", "codes, pieces one after the other",
        "codes, one piece", "codes, one piece, two blocks share x",
        "two blocks share x", "whole results", "whole results of codes, two blocks share x",
        "whole results of codes, in halves",
        "codes, four blocks share x", "codes, four blocks share w",
        "k in four", "codes, k in two", "more parts than blocks of k",
        "k in four, two tiles of rows",
        "codes, two tiles of rows", "codes, k in two, more than eight blocks each",
    ],
)  # fmt: skip
def test_a_kernel_computes_its_product(given, config, out, tmp_path) -> None:
    product = given.product(out)
    program = build(product, config, given, tmp_path)
    for seed in SEEDS:
        assert wrong(run(program, product, config, given, seed), given) == 0


@pytest.mark.parametrize(
    ("given", "config", "out"),
    [
        (operands(130, 264, 512, fp8=True, bias=True), Config("large", 128, 256, 2, 2, 1, 8, 0, 2), BF16),
        (operands(132, 264, 656, fp8=True, by_columns=True), Config("large", 128, 256, 3, 2, 1, 8, 0, 2), F32),
        (operands(300, 136, 1024, fp8=True), Config("large", 256, 128, 3, 2, 2, 8, 0, 1, True, True), BF16),
        (operands(300, 136, 1168, fp8=True, by_columns=True), Config("large", 256, 128, 2, 2, 2, 8, 0, 1), BF16),
        (operands(200, 200, 1536, fp8=True), Config("large", 128, 192, 3, 2, 2, 8, staged=True), BF16),
        (operands(200, 168, 144, fp8=True, by_columns=True), Config("large", 128, 160, 2, 2, 1, 8), BF16),
        (operands(300, 104, 512, fp8=True), Config("large", 256, 96, 2, 2, 1, 8), F32),
        (operands(200, 136, 1024, fp8=True, bias=True), Config("large", 64, 96, 2, 1, 4, 8), BF16),
        (operands(1, 72, 512, fp8=True), Config("large", 64, 64, 7, 1, 1, 8), BF16),
    ],
    ids=[
        "in halves", "columns, in halves, the last blocks of k are not four", "two blocks share x",
        "columns, two blocks share w", "two blocks share w", "columns, two blocks of k", "256 rows",
        "four blocks share w", "one row",
    ],
)  # fmt: skip
def test_scales_of_x_may_be_copied(given, config, out, tmp_path) -> None:
    config = replace(config, copied_scales=True)
    product = with_scales(given.product(out), config, given.x_scale, given.w_scale)
    assert product.x_scales == ("rows" if given.x_scale.stride(1) == 1 else "columns")
    assert product.w_together == (given.w_scale.shape[1] % 4 == 0)
    program, loads = (build(one, config, given, folder(tmp_path)) for one in (product, given.product(out)))
    for seed in SEEDS:
        found = run(program, product, config, given, seed)
        assert wrong(found, given) == 0
        assert torch.equal(found, run(loads, given.product(out), config, given, seed))  # bit by bit


def folder(parent: Path) -> Path:
    """A new folder."""
    made = parent / str(len(list(parent.iterdir())))
    made.mkdir()
    return made


def across(matrix: torch.Tensor, spare: int) -> torch.Tensor:
    """The same matrix, its rows next to each other, with NaN between its columns."""
    rows, columns = matrix.shape
    memory = torch.full((columns, rows + spare), float("nan"), dtype=matrix.dtype)
    memory[:, :rows] = matrix.T
    return memory[:, :rows].T


@pytest.mark.parametrize(
    ("m", "n", "k", "x_across", "w_across", "config"),
    [
        (130, 136, 136, False, True, Config("large", 128, 128, 2, 2, 1, 8)),
        (300, 200, 200, False, True, Config("large", 128, 128, 2, 2, 2, 1)),
        (70, 72, 264, True, False, Config("large", 64, 96, 3, 1, 1, 8)),
        (300, 136, 72, True, True, Config("large", 256, 128, 2, 2, 2, 8)),
        (1, 72, 200, True, True, Config("large", 64, 64, 3, 1, 1, 8)),
    ],
    ids=["w", "w, two blocks share it", "x", "both, 256 rows", "one row"],
)
def test_operands_may_lie_across_k(m, n, k, x_across, w_across, config, tmp_path) -> None:
    along = operands(m, n, k, bias=True)
    given = Operands(
        across(along.x, -m % 8 + 8) if x_across else along.x,
        across(along.w, 8) if w_across else along.w,
        bias=along.bias,
    )
    product = given.product(BF16)
    assert (product.x_across, product.w_across) == (x_across, w_across)
    program = build(product, config, given, tmp_path)
    for seed in SEEDS:
        assert wrong(run(program, product, config, given, seed), given) == 0


def outcomes(program: Path, given: Operands, config: Config, product: source.Product | None = None) -> list[str]:
    """For each seed what the kernel was stopped with, or whether its results are wrong."""
    found = []
    for seed in SEEDS:
        try:
            number = wrong(run(program, product or given.product(BF16), config, given, seed), given)
        except Stopped as stopped:
            found.append(str(stopped).split(":")[0])
        else:
            found.append("wrong" if number else "right")
    return found


def edit_kernel(monkeypatch: pytest.MonkeyPatch, file: str, old: str, new: str) -> None:
    """Have kernels made of an edited file."""
    texts = {name: source.read(name) for name in (file, "layouts.cuh")}
    assert old in texts[file]
    monkeypatch.setattr(source, "read", (texts | {file: texts[file].replace(old, new, 1)}).__getitem__)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("barrier_wait(empty + 8 * stage, phase ^ 1)", "(void)0", "barrier"),
        ("phase ^ 1", "phase", "deadlock"),
        ("products_wait<1>();\n          if", "products_wait<2>();\n          if", "wrong"),
        ("          fence_async_shared();\n", "", "named barrier"),
        ("slice + swizzled<SLICE_WIDTH>(offset), pairs", "slice + offset, pairs", "wrong"),
        ("if (leader) store_wait_all();", "", "stores"),
        ("- missing * 128);\n", "- missing * 128 - 16);\n", "deadlock"),
        ("rows - BLOCK_M : 0;", "rows - BLOCK_M - 1 : 0;", "wrong"),
    ],
    ids=[
        "a stage is filled before it is free", "the wrong phase", "a stage is freed before it is read", "no fence",
        "no swizzle", "stores left behind", "too few bytes announced", "the last row is left out",
    ],
)  # fmt: skip
def test_a_broken_kernel_fails(old, new, reason, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, config = operands(130, 72, 320), Config("large", 128, 64, 2, 2, 1, 8)
    edit_kernel(monkeypatch, "large.cuh", old, new)
    program = build(given.product(BF16), config, given, tmp_path)
    assert outcomes(program, given, config).count(reason)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("STAGE_BYTES + (brings ? BOXES * BOX_BYTES : 0)", "STAGE_BYTES", "deadlock"),
        ("const bool brings = block % QUAD == 0;", "const bool brings = block == 0;", "wrong"),
        ("scales + stage * SCALES_BYTES, scales_map", "scales, scales_map", "wrong"),
        ("if (place == QUAD - 1) load_w(block + 1);", "", "wrong"),
        ("first_row + 64 * (i / 2) + 8 * (i % 2)", "first_row + 64 * (i / 2)", "wrong"),
    ],
    ids=["bytes that are not announced", "only the first scales", "one place", "the first scales of w", "other rows"],
)
def test_a_broken_kernel_with_copied_scales_fails(old, new, reason, tmp_path: Path, monkeypatch) -> None:
    given, config = operands(300, 264, 1024, fp8=True), Config("large", 128, 64, 3, 2, 1, 8, copied_scales=True)
    edit_kernel(monkeypatch, "large.cuh", old, new)
    product = with_scales(given.product(BF16), config, given.x_scale, given.w_scale)
    program = build(product, config, given, tmp_path)
    assert outcomes(program, given, config, product).count(reason)


@pytest.mark.parametrize(
    ("m", "n", "k", "config"),
    [
        (70, 136, 272, Config("large", 128, 96, 3, 2, 1, 8)),
        (130, 200, 656, Config("large", 64, 64, 2, 1, 2, 1)),
        (200, 72, 144, Config("large", 128, 192, 3, 2, 1, 8)),
        (200, 136, 656, Config("large", 128, 128, 2, 2, 2, 8, 0, 2)),
        (200, 136, 272, Config("large", 256, 128, 2, 2, 1, 8, 0, 1)),
        (70, 72, 400, Config("large", 64, 16, 3, 1, 4, 8)),
    ],
    ids=["one block", "two blocks share w", "wide", "in halves", "rows one after the other", "narrow"],
)
def test_a_product_is_added_with_a_scale_for_each_row_of_both(m, n, k, config, tmp_path) -> None:
    given, blocks = operands(m, n, k, fp8=True), -(-k // 128)
    w_scale, before = torch.rand(blocks, n).t() + 0.5, torch.randn(m, n)
    given = Operands(given.x, given.w, given.x_scale, w_scale, added_to=before)
    product = given.product(F32)
    program = build(product, config, given, tmp_path)
    x = given.x.double() * given.x_scale.double().repeat_interleave(128, 1)[:, :k]
    w = given.w.double() * w_scale.double().repeat_interleave(128, 1)[:, :k]
    for seed in SEEDS:
        found = run(program, product, config, given, seed).double()
        bound = before.abs() * 2.0**-22 + x.abs() @ w.abs().T * 2.0**-20
        assert bool(((found - before.double() - x @ w.T).abs() <= bound).all())


def added(m: int, n: int, k: int, x_lie: str, w_lie: str) -> Operands:
    """Operands of a product that is added, whose scales the copy engine can bring."""
    given, blocks = operands(m, n, k, fp8=True), -(-k // 128)

    def lying(rows: int, lie: str) -> torch.Tensor:
        long, short = (rows, blocks) if lie == "rows" else (blocks, rows)
        room = torch.full((long, -(-short // 4) * 4), float("nan"))[:, :short].copy_(torch.rand(long, short) + 0.5)
        return room if lie == "rows" else room.mT

    return Operands(given.x, given.w, lying(m, x_lie), lying(n, w_lie), added_to=torch.randn(m, n))


def right(given: Operands, found: torch.Tensor) -> bool:
    """Whether the product was added to what there was."""
    k, before = given.x.shape[1], given.added_to.double()
    x = given.x.double() * given.x_scale.double().repeat_interleave(128, 1)[:, :k]
    w = given.w.double() * given.w_scale.double().repeat_interleave(128, 1)[:, :k]
    bound = before.abs() * 2.0**-22 + x.abs() @ w.abs().T * 2.0**-20
    return bool(((found.double() - before - x @ w.T).abs() <= bound).all())


@pytest.mark.parametrize(
    ("m", "n", "k", "lie", "config"),
    [
        (300, 208, 1296, ("columns", "columns"), Config("large", 128, 128, 3, 2, 1, 8)),
        (70, 136, 656, ("rows", "columns"), Config("large", 64, 64, 2, 1, 1, 1)),
        (200, 96, 784, ("columns", "columns"), Config("large", 128, 192, 2, 2, 1, 8)),
        (200, 280, 656, ("columns", "columns"), Config("large", 128, 256, 2, 2, 1, 8, 0, 2)),
        (300, 112, 272, ("rows", "columns"), Config("large", 256, 128, 2, 2, 1, 8, 0, 1)),
        (300, 208, 400, ("columns", "rows"), Config("large", 256, 96, 3, 2, 1, 2)),
        (130, 144, 1040, ("columns", "columns"), Config("large", 128, 144, 5, 2, 1, 8)),
        (200, 144, 1296, ("columns", "columns"), Config("large", 128, 128, 3, 2, 1, 8, 0, 1)),
        (200, 208, 784, ("rows", "columns"), Config("large", 128, 192, 2, 2, 1, 8, 0, 2)),
        (300, 112, 784, ("columns", "columns"), Config("large", 256, 96, 3, 2, 1, 8, 0, 1)),
    ],
    ids=[
        "whole",
        "one consumer",
        "wide",
        "in halves",
        "rows one after the other",
        "two parts at once",
        "narrow slices",
        "one block of k behind the other",
        "halves that overlap",
        "parts that overlap",
    ],
)
def test_a_product_is_added_by_scales_that_are_copied(m, n, k, lie, config, tmp_path) -> None:
    given, config = added(m, n, k, *lie), replace(config, copied_scales=True)
    product = with_scales(given.product(F32), config, given.x_scale, given.w_scale)
    assert (product.x_scales, product.w_scales) == lie
    program = build(product, config, given, tmp_path)
    for seed in SEEDS:
        assert right(given, run(program, product, config, given, seed))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("STAGE_BYTES + (brings ? SLOT_BYTES : 0)", "STAGE_BYTES", "deadlock"),
        ("SLOTS = 2 + (STAGES + 2) / QUAD", "SLOTS = 1", "wrong"),
        ("8 * (i % 2), in_slot)", "8 * (i % 2), 0)", "wrong"),
        ("if (run == RUNS - 1 && thread % 32 == 0)", "if (thread % 32 == 0)", "barrier"),
    ],
    ids=["bytes that are not announced", "one slot", "one block's scales", "a stage that is freed twice"],
)
def test_a_broken_kernel_of_added_products_fails(old, new, reason, tmp_path: Path, monkeypatch) -> None:
    given = added(200, 112, 1296, "columns", "columns")
    config = Config("large", 128, 64, 3, 2, 1, 8, 0, 2, copied_scales=True)
    edit_kernel(monkeypatch, "added.cuh", old, new)
    product = with_scales(given.product(F32), config, given.x_scale, given.w_scale)
    program, found = build(product, config, given, tmp_path), []
    for seed in SEEDS:
        try:
            found.append("right" if right(given, run(program, product, config, given, seed)) else "wrong")
        except Stopped as stopped:
            found.append(str(stopped).split(":")[0])
    assert found.count(reason)


def test_a_product_in_bfloat16_is_added(tmp_path) -> None:
    given, config = operands(130, 72, 200), Config("large", 128, 64, 2, 2, 1, 8)
    given = Operands(given.x, given.w, added_to=torch.randn(130, 72))
    program, product = build(given.product(F32), config, given, tmp_path), given.product(F32)
    x, w, before = given.x.double(), given.w.double(), given.added_to.double()
    for seed in SEEDS:
        found = run(program, product, config, given, seed).double()
        bound = before.abs() * 2.0**-22 + x.abs() @ w.abs().T * 2.0**-20
        assert bool(((found - before - x @ w.T).abs() <= bound).all())
