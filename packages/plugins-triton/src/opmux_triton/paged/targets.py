"""What the core calls for paged attention: chooses decode or prefill by the bounds, sizes grids, and launches."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from opmux_triton.arithmetic import next_power_of_two, padded
from opmux_triton.devices import units
from opmux_triton.interpreter import INTERPRETED
from opmux_triton.launch import launch
from opmux_triton.paged import combine_kernels, kernels
from opmux_triton.paged.call import Call
from opmux_triton.paged.configs import PagedConfig, PathConfig
from opmux_triton.paged.share_targets import attend_in_shares
from opmux_triton.repeats import kept, repeated, scratch
from opmux_triton.scoring.options import LOG2_E

_MOST_SPLITS = 1024
_MOST_UNITS = 512
"""No device has more units."""
_ANY = 1 << 30
"""No bound on the new tokens of a sequence."""


def paged_attention(*tensors: Tensor | None, config: PagedConfig, **options: Any) -> Tensor:
    """The op `paged_attention`."""
    return run(tensors, options, config, False)[0]


def paged_attention_lse(*tensors: Tensor | None, config: PagedConfig, **options: Any) -> tuple[Tensor, Tensor]:
    """The op `paged_attention_lse`."""
    out, lse = run(tensors, options, config, True)
    assert lse is not None
    return out, lse


def paged_attention_codes(*tensors: Tensor | None, config: PagedConfig, **options: Any) -> Tensor:
    """The op `paged_attention` on caches of 8-bit codes."""
    return run(tensors, options, config, False, coded=True)[0]


def paged_attention_lse_codes(*tensors: Tensor | None, config: PagedConfig, **options: Any) -> tuple[Tensor, Tensor]:
    """The op `paged_attention_lse` on caches of 8-bit codes."""
    out, lse = run(tensors, options, config, True, coded=True)
    assert lse is not None
    return out, lse


@dataclass(frozen=True, slots=True)
class Pass:
    """One launch over the sequences that have more than ``fewest`` new tokens, up to ``most``.

    Attributes:
        path: ``decode`` or ``prefill``: whose launch parameters it takes.
        rows: rows of a tile.
        places: how many tiles there may be for each kv head.
        search: whether a program finds its sequence by its place among the tokens.
        clear: whether it clears the tokens past the last sequence.
    """

    path: str
    rows: int
    places: int
    search: bool
    fewest: int
    most: int
    clear: bool


def _passes(config: PagedConfig, batch: int, tokens: int, group: int, longest: int) -> list[Pass]:
    """Decode, prefill or, where a batch may mix them, both.

    Every pass is correct for sequences of any length up to ``longest`` new tokens; which one runs is a matter of speed.
    """
    most_rows = config.decode.rows
    rows = min(padded(longest * group), most_rows)
    tiles = -(-longest * group // rows)
    if tiles == 1 or longest == 1:
        return [Pass("decode", rows, batch * tiles, False, 0, _ANY, True)]
    few = max(1, most_rows // group)
    rows = config.prefill.rows
    places = min(tokens * group // rows + batch, batch * (-(-longest * group // rows) + 1))
    mixed = batch > 1 and tokens < batch * longest
    passes = [Pass("prefill", rows, places, True, few if mixed else 0, _ANY, True)]
    if mixed:
        tiles = -(-few * group // most_rows)
        passes.append(Pass("decode", most_rows, batch * tiles, False, 0, few, False))
    return passes


def run(
    tensors: tuple[Tensor | None, ...], options: dict[str, Any], config: PagedConfig, with_lse: bool,
    prefill: Callable[[Call, Pass], bool] | None = None, coded: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Launch all passes of a call; ``prefill`` may take over a pass of prefill, and returns whether it did.

    ``coded`` says that the caches hold 8-bit codes.
    """
    q, _, v_cache, _, lengths, table, sinks, *scales = tensors
    assert q is not None
    assert v_cache is not None
    assert lengths is not None
    assert table is not None
    tokens, heads, head_dim = q.shape
    value_dim, longest = v_cache.shape[3], options["max_seqlen_q"]
    if coded:
        dtype = torch.bfloat16 if q.element_size() == 1 else q.dtype
        out = q.new_empty((tokens, heads, value_dim), dtype=dtype)
    elif value_dim == head_dim:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
    else:
        out = q.new_empty((tokens, heads, value_dim))
    lse = q.new_empty((heads, tokens), dtype=torch.float32) if with_lse else None
    given = cast("tuple[Tensor, ...]", tensors[: 6 if sinks is None else 7])
    if coded:
        given = tuple(t for t in tensors if t is not None)
    results = (out,) if lse is None else (out, lse)
    reach, batch = max(0, options["max_seqlen_k"]), lengths.shape[0]
    key = (
        "paged", id(config), q.shape, table.shape, sinks is None, options["scale"], options["softcap"],
        options["window"], options["causal"], longest,
        # Only this much of the reach matters, so the steps of a growing sequence have one key.
        -(-reach // config.decode.least), short_reach(config.decode, reach, batch * v_cache.shape[2]),
        -(-reach // config.prefill.least), _shares_of(config, reach), with_lse,
        prefill is None, coded and tuple(scale is None for scale in scales),
    )  # fmt: skip
    if repeated(key, given, results):
        return out, lse
    if tokens == 0:
        return out, lse
    if batch == 0 or longest <= 0:
        return out.zero_(), None if lse is None else lse.fill_(-math.inf)
    with kept(key, given, results, config):
        _run(Call.of(tensors, options, config, out, lse), prefill, batch, tokens)
    return out, lse


def _shares_of(config: PagedConfig, reach: int) -> tuple[int, tuple[bool, ...]] | None:
    """What the launches of equal shares take of the reach."""
    shares = config.shares
    return None if shares is None else (-(-reach // shares.least), shares.reached(reach))


def _run(call: Call, prefill: Callable[[Call, Pass], bool] | None, batch: int, tokens: int) -> None:
    group = call.q.shape[1] // call.k_cache.shape[2]
    for one in _passes(call.config, batch, tokens, group, call.longest):
        if one.path == "decode" and attend_in_shares(call):
            continue
        if not (prefill is not None and one.path == "prefill" and prefill(call, one)):
            attend(call, one)


def attend(call: Call, one: Pass, troubles: Tensor | None = None) -> None:
    """Launch one pass of the portable kernels; with ``troubles``, they return early unless one of these is not 0."""
    config, softcap = call.config, call.softcap
    q, k_cache, v_cache, offsets, lengths, sinks = (
        call.q, call.k_cache, call.v_cache, call.offsets, call.lengths, call.sinks,
    )  # fmt: skip
    tokens, heads, head_dim = q.shape
    _, page_size, kv_heads, value_dim = v_cache.shape
    batch, group = lengths.shape[0], heads // kv_heads
    factor = call.scale * 2 * LOG2_E / softcap if softcap > 0 else call.scale * LOG2_E
    shared = {"LEFT": call.left >= 0, "RIGHT": call.right >= 0}
    present = {"SINKS": sinks is not None, "LSE": call.lse is not None}
    path = config.decode if one.path == "decode" else config.prefill
    block_n, block_v = path.block_n, _columns(head_dim, value_dim, one.rows, bool(call.formats["FORMAT"]))
    splits, least = 1, 1
    if troubles is None:
        splits, least = splits_of(path, one, kv_heads, call.reach, units(q), k_cache.element_size() == 2)
    sums = statistics = None
    if splits > 1:
        sums = scratch((splits, tokens, heads, value_dim), q)
        statistics = scratch((splits + 1, tokens, heads, 2), q)  # after the splits: how many of them had a share
    launch(
        kernels.attend,
        (one.places * kv_heads, splits),
        (
            *call.stored, offsets, lengths, call.table, sinks, call.out, call.lse, sums, statistics, troubles,
            batch, tokens, 0 if troubles is None else troubles.shape[0], one.fewest, one.most, call.left, call.right,
            q.stride(0), q.stride(1), *k_cache.stride()[:3], *v_cache.stride()[:3],
            offsets.stride(0), lengths.stride(0), *call.table.stride(), call.sinks_stride, factor, softcap * LOG2_E,
            *call.scales,
        ),
        {
            "HEADS": heads, "GROUP": group, "PAGE_SIZE": page_size, "HEAD_DIM": head_dim, "VALUE_DIM": value_dim,
            "BLOCK_M": one.rows, "BLOCK_N": block_n, "BLOCK_D": padded(head_dim), "BLOCK_V": block_v,
            "BLOCK_G": next_power_of_two(group), "LEAST": least, **shared, "SOFTCAP": softcap > 0,
            "SCALED": not call.scale > 0, **present, "SPLIT": splits > 1, "SEARCH": one.search,
            "SINGLE": call.longest == 1, "CLEAR": one.clear and troubles is None, "UPCAST": INTERPRETED,
            **call.formats, "PAIRED": call.formats["PAIRED"] and one.rows < 64, **path.compiler_options(),
        },
    )  # fmt: skip
    if splits > 1:
        # For very many splits, reading unused ones costs less than many turns of waiting.
        most = config.combine.splits * (4 if splits > 4 * config.combine.splits else 1)
        at_a_time = min(most, max(4, next_power_of_two(splits)))
        launch(
            combine_kernels.combine,
            (tokens * heads,),
            (
                sums, statistics, offsets, lengths, sinks, call.out, call.lse,
                batch, tokens, splits, one.fewest, one.most, call.left, call.right,
                offsets.stride(0), lengths.stride(0), call.sinks_stride,
            ),
            {
                "HEADS": heads, "GROUP": group, "VALUE_DIM": value_dim, "BLOCK_M": one.rows, "BLOCK_N": block_n,
                "BLOCK_S": at_a_time, "BLOCK_V": block_v, "LEAST": least, **shared, **present,
                "SINGLE": call.longest == 1, "num_warps": config.combine.num_warps * max(1, at_a_time // 16),
            },
        )  # fmt: skip


def _columns(head_dim: int, value_dim: int, rows: int, coded: bool) -> int:
    """Columns of a tile of values.

    Converted tiles of keys and values take turns in one place of shared memory. With values of 64 bytes a row and keys
    of 128, ptxas 12.8, which Triton 3.6 uses, adds to a uniform register that it has not written yet, and warpgroups
    read outside of shared memory (12.9 is right): such values get the keys' width. Values read in pairs have
    tiles of half the width, and are not read so with these rows.
    """
    width = padded(value_dim)
    return max(width, min(64, padded(head_dim))) if coded and rows >= 64 else width


def splits_of(path: PathConfig, one: Pass, kv_heads: int, reach: int, units_: int, halves: bool) -> tuple[int, int]:
    """How many programs share the keys of a tile, and the fewest blocks that each gets.

    They should fill the device and have enough to do. Decoding of 16-bit caches whose tiles would leave units without a
    program is cut further, into splits that may be a single block, as long as no unit gets a second one: the call takes
    as long as its longest split (one sequence of 260 keys with room for 400 and 4 kv heads on an H200: 5.8 us, and 9.4
    in splits of 256 keys). Up to ``least`` keys are one split, which nothing has to join.
    """
    tiles = one.places * kv_heads
    splits = max(1, min(units_ * path.programs // tiles, -(-reach // path.least), _MOST_SPLITS))
    if halves and one.path == "decode" and reach > path.least:
        short = min(units_ // tiles, -(-reach // path.block_n))
        if short >= max(2, splits):
            return short, 1
    return splits, max(1, path.least // path.block_n) if splits > 1 else 1


def short_reach(path: PathConfig, reach: int, tiles: int) -> int:
    """What the splits of a block take of the reach: nothing beyond what gives each unit a program."""
    return min(-(-reach // path.block_n), _MOST_UNITS // max(1, tiles))
