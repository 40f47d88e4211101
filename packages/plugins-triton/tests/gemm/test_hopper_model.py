"""The cost model of products on sm_90: what it may pick, and that it picks sensibly."""

import dataclasses
import itertools
import math
import random

import pytest

from opmux.plugin import parse_arch
from opmux_triton.archs import shared_memory
from opmux_triton.gemm import hopper_heuristics, hopper_model, spaces
from opmux_triton.gemm.configs import HopperConfig
from opmux_triton.gemm.cuts import even_shares, halves_of, rest_of
from opmux_triton.gemm.hopper_model import UNITS, best, choices, config, cuts_of, predict, work_of
from opmux_triton.gemm.hopper_tiles import TILES, Tile

SM_90 = parse_arch("sm_90")
WIDTHS = (8, 768, 1024, 2304, 4096, 7168, 14336, 28672)
TOKENS = (17, 72, 144, 320, 1000, 4096, 16384)
SHAPES = list(itertools.product(TOKENS, WIDTHS, WIDTHS))
OTHERWISE = hopper_heuristics.portable(4096, 4096, 4096)


def shared_bytes(c: HopperConfig) -> int:
    """The ring of both operands, and the slots of the result."""
    rows = c.block_m if c.alternate else c.block_m // c.warpgroups
    left, right = halves_of(c.block_n)
    ring = c.stages * (c.block_m + c.block_n) * c.block_k
    return 2 * (ring + c.warpgroups * rows * (c.slots * left // c.parts + right))


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_tiles_suit_the_instructions_and_shared_memory(tile: Tile) -> None:
    c = config(hopper_model.Choice(0.0, tile, "none", False), 4096, OTHERWISE)
    assert c.stages >= 2
    # Barriers take 16 bytes a stage and 8 a warpgroup; the compiler keeps some bytes for the warps' roles.
    assert shared_bytes(c) + 16 * c.stages + 8 * c.warpgroups + 64 <= shared_memory("sm_90")
    assert tile.block_m // (1 if tile.alternate else tile.warpgroups) in (64, 128)
    assert all(part == 0 or (part >= 16 and part & (part - 1) == 0) for part in halves_of(tile.block_n))
    assert all(math.isfinite(value) and value >= 0 for value in tile.cost)
    assert min(tile.cost.start, tile.cost.block, tile.cost.memory) > 0


def test_tiles_are_told_apart() -> None:
    assert len({tile[:5] for tile in TILES}) == len(TILES)
    assert len({(t.block_m, t.block_n, t.block_k, t.alternate) for t in TILES}) == len(TILES)


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_every_shape_has_a_choice_and_its_cuts_leave_no_program_two_parts(m: int, n: int, k: int) -> None:
    found = list(choices(m, n, k))
    assert found
    for choice in found:
        rows, columns = (n, m) if choice.swap else (m, n)
        tiles = -(-rows // choice.tile.block_m) * -(-columns // choice.tile.block_n)
        blocks = -(-k // choice.tile.block_k)
        assert 0 < choice.time < math.inf
        if choice.cut == "none":
            continue
        rest = tiles if choice.cut == "all" else rest_of(tiles, blocks, UNITS)
        share, length = even_shares(rest, blocks, UNITS)
        assert 0 < rest * (length // share) <= UNITS
        assert length % share == 0
        assert length >= blocks > length - share


def test_the_choice_does_not_depend_on_the_order_of_the_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [SHAPES[i] for i in range(0, len(SHAPES), 7)]
    before = [best(*one) for one in sizes]
    shuffled = list(TILES)
    random.Random(0).shuffle(shuffled)
    monkeypatch.setattr(hopper_model, "TILES", tuple(shuffled))
    best.cache_clear()
    try:
        assert [best(*one) for one in sizes] == before
    finally:
        best.cache_clear()


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_more_work_takes_longer(tile: Tile) -> None:
    for cut in cuts_of(tile, 512, 4096, 4096):
        here = predict(tile, work_of(tile, cut, 512, 4096, 4096))
        assert here < predict(tile, work_of(tile, cut, 512, 4096, 8192))
        assert predict(tile, work_of(tile, "none", 512, 4096, 4096)) <= predict(
            tile, work_of(tile, "none", 512, 8192, 4096)
        )


def test_long_sums_of_few_tiles_are_cut_and_full_rounds_are_not() -> None:
    assert best(128, 768, 28672).cut == "all"
    assert best(8192, 8192, 1024).cut == "none"


def test_predictions_are_near_what_was_measured() -> None:
    """Microseconds on an H200: the shapes are some of those that the constants were fitted to."""
    for (m, n, k), measured in {
        (210, 3584, 16384): 57.8,
        (359, 9216, 22016): 220.5,
        (1635, 16384, 1024): 79.1,
        (5765, 4096, 8192): 530.4,
    }.items():
        assert 0.75 < best(m, n, k).time / measured < 1.3


@pytest.mark.parametrize("tokens", [16, 17, 144, 4096])
def test_few_rows_are_left_to_the_portable_kernels(tokens: int) -> None:
    features = {"bucket(tokens, 8)": tokens, "n": 4096, "k": 4096}
    why = hopper_heuristics.why_not_linear(features)
    assert (why is None) == (tokens > hopper_heuristics.FEW)
    if why is None:
        assert hopper_heuristics.linear(SM_90, features) == hopper_heuristics.gluon(tokens, 4096, 4096)
    else:
        assert why == "the portable kernel was measured to be as fast or faster"
        with pytest.raises(ValueError, match=why):
            hopper_heuristics.linear(SM_90, features)


@pytest.mark.parametrize(
    ("tokens", "n", "portable"),
    [(128, 7168, True), (72, 6336, True), (128, 8448, True), (64, 7168, False), (136, 7168, False), (128, 6144, False),
     (128, 8512, False)],
)  # fmt: skip
def test_tiles_of_64_columns_that_fill_the_device_once_are_left_to_the_portable_kernel(
    tokens: int, n: int, portable: bool
) -> None:
    features = {"bucket(tokens, 8)": tokens, "n": n, "k": 16384}
    assert (hopper_heuristics.why_not_linear(features) is not None) == portable


def test_the_space_begins_with_the_choice() -> None:
    features = {"bucket(tokens, 8)": 320, "n": 4096, "k": 4096}
    space = list(spaces.hopper_linear(SM_90, features))
    assert space[0] == hopper_heuristics.linear(SM_90, features)
    assert len(space) == len({str(dataclasses.asdict(c)) for c in space}) > 30
    assert not list(spaces.hopper_linear(SM_90, features | {"bucket(tokens, 8)": 8}))


def test_the_space_has_the_options_that_the_choice_never_takes() -> None:
    few = list(spaces.hopper_linear(SM_90, {"bucket(tokens, 8)": 64, "n": 4096, "k": 4096}))
    assert {c.spin for c in few} == {c.swap for c in few} == {True, False}
    assert {c.cut for c in few} == {"none", "all"}
    assert all(c.cut == "none" and not c.alternate for c in few if c.spin)
    many = list(spaces.hopper_linear(SM_90, {"bucket(tokens, 8)": 4096, "n": 4096, "k": 4096}))
    assert {c.cut for c in many} == {"none", "rest"}
    assert not any(c.spin for c in many)


def test_the_space_of_the_gradient_changes_one_product_at_a_time_and_both_together() -> None:
    features = {"bucket(tokens, 8)": 1024, "n": 4096, "k": 2048}
    base = hopper_heuristics.linear_backward(SM_90, features)
    space = list(spaces.hopper_linear_backward(SM_90, features))
    assert len(space) == 3 * spaces.PRODUCTS
    assert {c.grad_w for c in space[: spaces.PRODUCTS]} == {base.grad_w}
    assert {c.grad_x for c in space[spaces.PRODUCTS : 2 * spaces.PRODUCTS]} == {base.grad_x}
    assert space[-1].grad_x != base.grad_x
    assert space[-1].grad_w != base.grad_w
    assert all(c.grad_bias == base.grad_bias for c in space)


def test_programs_side_by_side_read_one_weight_where_tokens_are_few() -> None:
    tile = next(t for t in TILES if (t.block_m, t.block_n) == (128, 96))
    few, many = (config(hopper_model.Choice(0.0, tile, "none", True), m, OTHERWISE) for m in (500, 4096))
    assert (few.group, many.group) == (1, hopper_model.GROUP)
