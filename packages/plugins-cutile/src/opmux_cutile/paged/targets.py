"""What the core calls for attention over a paged cache."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from opmux_cutile import launching
from opmux_cutile.attention.configs import AttentionConfig
from opmux_cutile.attention.targets import MOST_GRID, OPEN, packed_where_single
from opmux_cutile.decoding import slices
from opmux_cutile.decoding.slices import FEWEST_KEYS, MOST_SPLITS
from opmux_cutile.launching import TileKernel, aligned, launch
from opmux_cutile.paged.configs import PagedConfig
from opmux_cutile.parameters import Array, Constant, Parameter, Scalar
from opmux_cutile.products.targets import units_of
from opmux_cutile.tiles import power_of_two

MODULE = "opmux_cutile.paged.kernels"
TYPICAL_UNITS = 132
"""Multiprocessors that are taken for granted without a GPU, where kernels are built ahead."""
MOST_UNITS = 256
"""More multiprocessors than a GPU has."""
EVEN = 64
"""The least width of tiles of keys and of values that are of one width."""
FEW_ROWS = 32
"""Of a tile, the most where rows of codes are no whole vectors: addresses take the registers."""


def paged_attention(*tensors: Tensor | None, config: PagedConfig, **options: Any) -> Tensor:
    """The op `paged_attention`."""
    return attend("paged_attention", tensors, False, options, config, kernel_of_keys)[0]


def paged_attention_lse(
    *tensors: Tensor | None, config: PagedConfig, **options: Any
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The op `paged_attention_lse`."""
    return attend("paged_attention_lse", tensors, True, options, config, kernel_of_keys)


def splits_of(blocks: int, keys: int, units: int) -> int:
    """Into how many parts the keys of each of some blocks are split: two blocks for each multiprocessor."""
    return max(1, min(MOST_SPLITS, 2 * units // max(blocks, 1), -(-keys // FEWEST_KEYS)))


def attend(
    op: str,
    tensors: tuple[Any, ...],
    wants_lse: bool,
    options: dict[str, Any],
    config: PagedConfig,
    make: Callable[..., TileKernel],
) -> tuple[Tensor, Tensor]:
    """The mean and the lse of each query.

    Args:
        op: the op.
        tensors: its tensors.
        wants_lse: whether the lse is wanted.
        options: the op's.
        config: the tile.
        make: the kernel that looks up each key, by what `kernel_of_keys` takes.
    """
    q, k_cache, v_cache, starts, lengths, table, sinks, _, k_scale, v_scale = tensors
    tokens, heads, dim = q.shape
    kv_heads, width = v_cache.shape[2:]
    out = q.new_zeros((tokens, heads, width))  # of tokens past the last sequence
    lse = q.new_full((heads, tokens) if wants_lse else (1, 1), -float("inf"), dtype=torch.float32)
    longest, reach = options["max_seqlen_q"], max(options["max_seqlen_k"], 0)
    if not out.numel() or longest < 1:
        return out, lse
    groups = heads // kv_heads
    caches = [packed_where_single(x) for x in (k_cache, v_cache)]
    coded, fits = k_cache.dtype.itemsize == 1, aligned(q, *caches)
    scattered = coded and not _whole_rows(dim, width, fits)
    most = min(config.block_m, FEW_ROWS) if scattered else config.block_m
    block_m = min(most, max(16, power_of_two(longest * groups)))
    left, right = options["window"]
    right = 0 if options["causal"] else right
    reach = min(reach, left + longest + max(right, 0)) if left >= 0 and right >= 0 else reach
    tiles, batch = -(-longest * groups // block_m), len(lengths)
    index = q.get_device()
    units = TYPICAL_UNITS if index < 0 else units_of(index)
    by_slices = slices.tile_of(config, q, caches, longest, groups)
    blocks, capped = tiles * kv_heads * batch, options["softcap"] > 0.0
    tile: AttentionConfig | None = None
    rooms: tuple[AttentionConfig | None, ...] = None, None
    if by_slices:
        whole, of_parts = rooms = slices.rooms_of(by_slices, coded, dim, capped or left >= 0)
        tile, splits = slices.parts_of(whole, of_parts, blocks, reach, units)
    else:
        splits = splits_of(blocks, reach, units)
    bounds = [OPEN if bound < 0 else min(bound, OPEN) for bound in (left, right)]
    of_call = None if sinks is None else _name(sinks), wants_lse, k_scale is not None, v_scale is not None

    def form(tile: AttentionConfig | None, split: bool) -> TileKernel:
        """The kernel where keys are split between blocks, or the one where they are not."""
        if tile:
            held = _name(k_cache), k_cache.shape[1], dim
            return slices.kernel(op, tile, _name(q), *held, capped, left >= 0, *of_call, split)
        return make(
            op, config, block_m, _name(q), _name(k_cache), tuple(k_cache.shape[1:]), width, fits,
            capped, left >= 0 or right >= 0, left >= 0, *of_call, split,
        )  # fmt: skip

    kernel = form(tile, splits > 1)
    some = min(power_of_two(heads), max(1, 1024 // power_of_two(width)))
    if (others := launching.others()) is not None:
        # How keys are split goes by the multiprocessors and by how long sequences are: neither is known ahead.
        others.append(form(rooms[0], False))
        if tile or blocks <= MOST_UNITS:  # of more blocks, keys that are looked up one by one are not split
            others += form(rooms[1], True), _combine(op, _name(out), some, width, wants_lse)
    if tile:
        caches, bounds = [slices.words(cache) for cache in caches], bounds[:1]
        table = table if table.stride(1) == 1 else table.contiguous()
    sums, tops, totals = out, lse[None], lse[None]
    if splits > 1:
        sums = q.new_empty((splits, tokens, heads, width), dtype=torch.float32)
        tops, totals = q.new_empty((2, splits, tokens, heads), dtype=torch.float32)
    # What is not given is not read.
    logits = lse.view(-1)[:1] if sinks is None else sinks
    of_codes = [lse.view(-1)[:1] if x is None else x.expand(kv_heads) for x in (k_scale, v_scale)]
    scale = dim**-0.5 if options["scale"] is None else options["scale"]
    starts, lengths = starts.contiguous(), lengths.contiguous()
    for first in range(0, batch, MOST_GRID):
        part = lengths[first : first + MOST_GRID]
        launch(
            kernel, (tiles * splits, kv_heads, len(part)), packed_where_single(q), *caches,
            starts[first : first + MOST_GRID + 1], part, packed_where_single(table[first : first + MOST_GRID]), logits,
            *of_codes, sums, lse, tops, totals, scale, options["softcap"] or 1.0, *bounds, groups, splits,
        )  # fmt: skip
    if splits > 1:
        joined = _combine(op, _name(out), some, width, wants_lse)
        launch(joined, (tokens, -(-heads // some), 1), sums, tops, totals, starts, out, lse, splits, batch)
    return out, lse


def _whole_rows(dim: int, width: int, fits: bool) -> bool:
    """Whether rows of codes are whole vectors of 16 bytes."""
    return fits and dim % 16 == 0 and width % 16 == 0


def _name(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


@lru_cache(maxsize=1024)
def kernel_of_keys(
    op: str, config: PagedConfig, block_m: int, dtype: str, stored: str, page: tuple[int, int, int], width: int,
    fits: bool, capped: bool, banded: bool, windowed: bool, sinks: str | None, wants_lse: bool, k_scaled: bool,
    v_scaled: bool, split: bool, even: bool = False,
) -> TileKernel:  # fmt: skip
    """The kernel for heads and pages of a size. Results that are not wanted have tensors that are not written.

    With `even`, tiles of keys and of values are of one width, as in `opmux_cutile.attention.gathered`; for codes they
    always are.
    """
    page_size, _, dim = page
    coded = stored not in ("bfloat16", "float16")
    widest, narrowest = power_of_two(max(dim, width)), power_of_two(min(dim, width))
    # Codes of wide heads in tiles of many rows spill in the loop without a mask if it may have all keys.
    banded = banded or (coded and not even and widest > 128 and block_m >= 64)
    columns = [max(widest, EVEN)] * 2 if even or coded else [max(power_of_two(n), 16) for n in (dim, width)]
    hints: Mapping[str, int] = config.hints
    block_n = config.block_n
    if block_m < config.block_m:
        # Few queries leave registers for more keys of a step, or for more blocks; rows of 16 or fewer spill them.
        hints, block_n = {}, 32 if narrowest <= 16 else min(2 * block_n, max(block_n, 16384 // widest))
        if widest > 128 and block_m > 16:  # the sums alone are a third of the registers
            block_n = min(block_n, config.block_n)
    if coded and not even:
        hints, block_n = _for_codes(hints, block_m, block_n, dim, width, fits)
    elif coded and block_m < 64:
        hints, block_n = ({"occupancy": 2}, 32) if widest > 128 else ({"occupancy": 4}, 4096 // columns[0])
    queries = Array(dtype, (None, None, dim), (None, None, 1), fits)
    caches = [Array(stored, (None, page_size, None, n), (None, None, None, 1), fits) for n in (dim, width)]
    offsets, table = Array("int32", (None,), (1,), False), Array("int32", (None, None), (None, None), False)
    logits, scale = Array(sinks or "float32", (None,), (None,), False), Array("float32", (None,), (None,), False)
    sums = Array("float32", (None, None, None, width), (None, None, None, 1), width % 4 == 0)
    out = sums if split else Array(dtype, (None, None, width), (None, None, 1), width % 8 == 0)
    lse, parts = Array("float32", (None, None), (None, 1), False), Array("float32", (None,) * 3, (None, None, 1), False)
    numbers = [Scalar("float32")] * 2 + [Scalar("int32")] * 4
    sizes = (
        block_m, block_n, *columns, capped, banded, windowed,
        sinks is not None, wants_lse, k_scaled, v_scaled, split,
    )  # fmt: skip
    parameters: tuple[Parameter, ...] = (
        queries, *caches, offsets, offsets, table, logits, scale, scale, out, lse, parts, parts, *numbers,
        *map(Constant, sizes),
    )  # fmt: skip
    return TileKernel(op, MODULE, "attend", parameters, hints)


def _for_codes(
    hints: Mapping[str, int], block_m: int, block_n: int, dim: int, width: int, fits: bool
) -> tuple[Mapping[str, int], int]:
    """The hints and the keys of a step for codes, which are in registers as bytes and in 16 bits.

    Products of fewer rows than 64 take operands from registers. Where rows of heads are not whole vectors, addresses
    are in registers too.
    """
    widest, narrowest = power_of_two(max(dim, width)), power_of_two(min(dim, width))
    wide = widest > 128
    if not _whole_rows(dim, width, fits):
        if wide:
            return {"num_worker_warps": 8} if block_m > 16 else {}, min(block_n, 32)
        return {"occupancy": 2}, min(block_n, 32)
    if block_m >= 64:
        return {"num_worker_warps": 4, "occupancy": 2} if widest <= 64 else hints, block_n
    if block_m > 16 or wide:
        return {"occupancy": 2}, min(block_n, 32)
    most = 32 if narrowest < 64 else 4096 // max(widest, EVEN)
    return {"occupancy": 4}, min(block_n, most)


@lru_cache(maxsize=1024)
def _combine(op: str, dtype: str, heads: int, width: int, wants_lse: bool) -> TileKernel:
    """The kernel that joins splits, as many as there may be."""
    sums = Array("float32", (None, None, None, width), (None, None, None, 1), width % 4 == 0)
    out = Array(dtype, (None, None, width), (None, None, 1), width % 8 == 0)
    parts, lse = Array("float32", (None,) * 3, (None, None, 1), False), Array("float32", (None, None), (None, 1), False)
    parameters: tuple[Parameter, ...] = (
        sums, parts, parts, Array("int32", (None,), (1,), False), out, lse, Scalar("int32"), Scalar("int32"),
        *map(Constant, (MOST_SPLITS, heads, power_of_two(width), wants_lse)),
    )  # fmt: skip
    return TileKernel(op, MODULE, "combine", parameters)
