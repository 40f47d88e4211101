"""The tile that a call gets, and the space that tuning searches."""

import pytest

from opmux.plugin import parse_arch
from opmux.testing.model_shapes import MODELS
from opmux_ck.gemm.choice import (
    BLOCK_TILES,
    CODES_TILES,
    FEW_ROWS,
    FEW_ROWS_OF_BLOCKS,
    FEW_ROWS_OF_CODES,
    TILES,
    UNITS,
    blocks_config,
    blocks_space,
    codes_config,
    codes_space,
    gemm_config,
    gemm_space,
)
from opmux_ck.gemm.configs import BlockCodesConfig, misfit

GFX942 = parse_arch("gfx942")


def features(rows: int, n: int, k: int) -> dict[str, int]:
    return {"bucket(tokens)": (rows - 1).bit_length(), "n": n, "k": k}


@pytest.mark.parametrize(
    ("rows", "n", "k", "tile", "split"),
    [
        (1, 8192, 8192, FEW_ROWS, 2),
        (16, 1024, 8192, FEW_ROWS, 16),
        (4096, 24576, 1536, TILES[0], 1),
        (2048, 4096, 4096, TILES[1], 1),
        (128, 4096, 4096, TILES[2], 2),
        (128, 4096, 4104, TILES[2], 1),
    ],
)
def test_the_largest_tile_that_occupies_the_device(rows, n, k, tile, split) -> None:
    found = gemm_config(GFX942, features(rows, n, k))
    assert (found.m, found.n, found.k, found.split_k) == (tile.m, tile.n, tile.k, split)


def test_padding_and_stores_are_what_the_sizes_need() -> None:
    whole, odd = (gemm_config(GFX942, features(16, *sizes)) for sizes in ((256, 256), (130, 264)))
    assert (whole.pads_n, whole.pads_k, whole.store) == (False, False, 8)
    assert (odd.pads_n, odd.pads_k, odd.store) == (True, True, 2)


@pytest.mark.parametrize("rows", [1, 16, 100, 4096])
@pytest.mark.parametrize("model", MODELS.values(), ids=str)
def test_what_models_get_fits(model, rows) -> None:
    heads = model.heads * model.head_dim
    for n, k in ((model.hidden, heads), (2 * model.intermediate, model.hidden), (model.hidden, model.intermediate)):
        config = gemm_config(GFX942, features(rows, n, k))
        assert misfit(config, n, k) is None
        space = list(gemm_space(GFX942, features(rows, n, k)))
        assert len(space) == len(set(space)) > 0
        assert all(misfit(one, n, k) is None for one in space)


@pytest.mark.parametrize(
    ("rows", "n", "k", "tile"),
    [(1, 8192, 8192, FEW_ROWS_OF_CODES), (4096, 4096, 4096, CODES_TILES[0]), (128, 4096, 4112, CODES_TILES[1])],
)
def test_the_tile_of_codes(rows, n, k, tile) -> None:
    sizes = {"bucket(m)": (rows - 1).bit_length(), "n": n, "k": k}
    found = codes_config(GFX942, sizes)
    assert (found.m, found.n, found.k, found.pads_k) == (tile.m, tile.n, tile.k, k % tile.k > 0)
    space = list(codes_space(GFX942, sizes))
    assert len(space) == len(set(space)) > 0
    assert all(misfit(one, n, k) is None for one in space)


@pytest.mark.parametrize(
    ("rows", "n", "k", "tile"),
    [(1, 7168, 2048, FEW_ROWS_OF_BLOCKS), (4096, 7168, 2048, BLOCK_TILES[0]), (128, 4096, 7168, BLOCK_TILES[1])],
)
def test_the_tile_of_codes_with_scales_of_blocks(rows, n, k, tile) -> None:
    sizes = {"bucket(m)": (rows - 1).bit_length(), "n": n, "k": k}
    found = blocks_config(GFX942, sizes)
    assert (type(found), found.m, found.n, found.pads_k) == (BlockCodesConfig, tile.m, tile.n, False)
    space = list(blocks_space(GFX942, sizes))
    assert len(space) == len(set(space)) > 0
    assert all(isinstance(one, BlockCodesConfig) and misfit(one, n, k) is None for one in space)


def test_every_arch_has_its_units() -> None:
    assert UNITS == {"gfx942": 304, "gfx950": 256}
