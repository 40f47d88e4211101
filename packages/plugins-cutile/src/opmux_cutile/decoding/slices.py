"""Which decoding copies pages as slices, and the kernel for it."""

from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from opmux_cutile.attention.configs import AttentionConfig
from opmux_cutile.launching import TileKernel, aligned
from opmux_cutile.paged.configs import PagedConfig
from opmux_cutile.parameters import Array, Constant, Parameter, Scalar
from opmux_cutile.tiles import power_of_two

MODULE = "opmux_cutile.decoding.kernels"
ROWS = 16
"""Of a tile: heads that share keys."""
SMALLEST_PAGE = 16
MOST_SPLITS = 64
FEWEST_KEYS = 256
"""That are worth a split."""
MOST_BLOCKS = 3
"""On a multiprocessor, of wide heads of 16-bit floats where keys are split, scores capped or keys left out: with more,
registers spill."""
CODES = {"int8": 1, "float8_e4m3fn": 2, "float8_e5m2": 3}
"""As the kernel takes them."""
LATE_PAGE = 64
"""From pages of this size on, sums of shares of codes are added up after the last step: with more pages in a step their
addresses take the registers."""


def tile_of(config: PagedConfig, q: Tensor, caches: list[Tensor], longest: int, groups: int) -> AttentionConfig | None:
    """The tile of decoding by slices of pages; None where keys are looked up one by one.

    Args:
        config: of the call.
        q: the queries.
        caches: keys and values.
        longest: the most queries of a sequence.
        groups: heads that share keys.
    """
    k_cache = caches[0]
    page_size = k_cache.shape[1]
    coded = k_cache.dtype.itemsize == 1
    tile = config.of_codes if coded else config.of_numbers
    fits = (
        tile is not None
        and longest == 1
        and groups <= ROWS
        and page_size >= SMALLEST_PAGE
        and page_size == power_of_two(page_size)
        # Keys of 64 numbers with values of 128 spill registers under a cap and a window.
        and k_cache.shape[-1] == caches[1].shape[-1]
        and k_cache.shape[-1] in (64, 128)
        and aligned(q, *caches)
        # The copy engine is given no dim whose elements overlap.
        and all(step or size == 1 for cache in caches for size, step in zip(cache.shape, cache.stride(), strict=True))
    )
    return tile if fits else None


def rooms_of(tile: AttentionConfig, coded: bool, dim: int, masked: bool) -> tuple[AttentionConfig, AttentionConfig]:
    """The tile with room for as many blocks as spill nothing: where keys are not split, and where they are.

    Args:
        tile: of the config.
        coded: whether caches have codes.
        dim: of a head.
        masked: whether scores are capped, or keys before a window are left out.
    """
    narrow = coded or dim <= 64 or tile.occupancy <= MOST_BLOCKS
    few = tile if narrow else replace(tile, occupancy=MOST_BLOCKS)
    return few if masked else tile, few


@lru_cache(maxsize=1024)
def parts_of(
    whole: AttentionConfig, split: AttentionConfig, blocks: int, keys: int, units: int
) -> tuple[AttentionConfig, int]:
    """The tile, and into how many parts the keys of a block are split.

    Of the last round of blocks most places may be empty. A part takes about as long as `FEWEST_KEYS` keys more than it
    has: so this orders one to eight parts of each of five calls as an H200 did.

    Args:
        whole: the tile where keys are not split.
        split: where they are.
        blocks: how many there are without parts.
        keys: of each, the most.
        units: multiprocessors.
    """

    def rounds(some: AttentionConfig, n: int) -> float:
        return -(-blocks * n // (units * max(some.occupancy, 1))) * (keys / n + FEWEST_KEYS)

    most = max(1, min(MOST_SPLITS, -(-keys // FEWEST_KEYS)))
    best = min(range(1, most + 1), key=lambda n: rounds(split, n))
    return (whole, 1) if rounds(whole, 1) <= rounds(split, best) else (split, best)


def words(cache: Tensor) -> Tensor:
    """Codes as words of two; numbers as they are."""
    return cache.view(torch.int16) if cache.dtype.itemsize == 1 else cache


@lru_cache(maxsize=1024)
def kernel(
    op: str, tile: AttentionConfig, dtype: str, stored: str, page_size: int, dim: int, capped: bool, windowed: bool,
    sinks: str | None, wants_lse: bool, k_scaled: bool, v_scaled: bool, split: bool,
) -> TileKernel:  # fmt: skip
    """The kernel for heads and pages of a size."""
    codes = CODES.get(stored, 0)
    held, each = ("int16", 2) if codes else (stored, 1)
    cache = Array(held, (None, page_size, None, dim // each), (None, None, None, 1), True)
    offsets, table = Array("int32", (None,), (1,), False), Array("int32", (None, None), (None, 1), False)
    logits, scale = Array(sinks or "float32", (None,), (None,), False), Array("float32", (None,), (None,), False)
    sums = Array("float32", (None, None, None, dim), (None, None, None, 1), True)
    out = sums if split else Array(dtype, (None, None, dim), (None, None, 1), True)
    lse, parts = Array("float32", (None, None), (None, 1), False), Array("float32", (None,) * 3, (None, None, 1), False)
    late = not codes or page_size >= LATE_PAGE
    ahead = bool(codes) and page_size >= LATE_PAGE
    sizes = (
        ROWS, tile.block_n, dim, dim, page_size, codes, late, ahead, capped, windowed, sinks is not None, wants_lse,
        k_scaled, v_scaled, split,
    )  # fmt: skip
    parameters: tuple[Parameter, ...] = (
        Array(dtype, (None, None, dim), (None, None, 1), True), cache, cache, offsets, offsets, table, logits, scale,
        scale, out, lse, parts, parts, *[Scalar("float32")] * 2, *[Scalar("int32")] * 3, *map(Constant, sizes),
    )  # fmt: skip
    return TileKernel(op, MODULE, "decode", parameters, tile.hints)
