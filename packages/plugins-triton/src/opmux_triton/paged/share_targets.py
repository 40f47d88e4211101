"""Launches decoding in equal shares: for which calls, how many programs there are, their slots, and the joining."""

from opmux_triton.arithmetic import next_power_of_two, padded
from opmux_triton.devices import units
from opmux_triton.interpreter import INTERPRETED
from opmux_triton.launch import launch
from opmux_triton.paged import join_kernels, share_kernels
from opmux_triton.paged.call import Call
from opmux_triton.paged.configs import SharesConfig
from opmux_triton.repeats import scratch
from opmux_triton.scoring.options import LOG2_E

_AT_A_TIME = 4096
"""Values that a program of 4 warps joins at a time: 32 in the registers of a thread."""
_SHORT = 16
"""With more rows, half of the keys are scored at a time: both take registers (64 heads of 64, H200: 67 to 62 us)."""
_LARGE = 8192
"""Bytes of a block of keys or values up to which all of it is scored at a time."""
_MOST_CODED = 32
"""The most rows of a tile on caches of codes: with 64, warpgroups multiply, which fails at some widths (`targets`)."""


def attend_in_shares(call: Call) -> bool:
    """Launch a decode step in equal shares; returns False, without launching, where whole sequences serve it better."""
    shares = call.config.shares
    if shares is None or call.longest > 1:
        return False
    group = call.q.shape[1] // call.k_cache.shape[2]
    rows = min(padded(group), shares.rows)
    if call.formats["FORMAT"]:
        rows = min(rows, _MOST_CODED)
    tiles = call.k_cache.shape[2] * -(-group // rows)
    if not shares.takes(tiles, call.lengths.shape[0], call.reach, units(call.q)):
        return False
    _launch(call, shares, group, rows, tiles)
    return True


def _launch(call: Call, config: SharesConfig, group: int, rows: int, tiles: int) -> None:
    softcap = call.softcap
    q, k_cache, v_cache, offsets, lengths, sinks = (
        call.q, call.k_cache, call.v_cache, call.offsets, call.lengths, call.sinks,
    )  # fmt: skip
    tokens, heads, head_dim = q.shape
    _, page_size, _, value_dim = v_cache.shape
    batch = lengths.shape[0]
    formats = call.formats
    # Codes that are not read in pairs take registers too.
    short = rows <= _SHORT and (formats["PAIRED"] or not formats["FORMAT"])
    large = config.block_n * padded(max(head_dim, value_dim)) * k_cache.element_size() > _LARGE
    block_n = max(16, config.block_n // 2) if large and not short else config.block_n
    factor = call.scale * 2 * LOG2_E / softcap if softcap > 0 else call.scale * LOG2_E
    shares = max(1, min(units(q) * config.programs // tiles, batch * -(-call.reach // config.least)))
    sums = scratch((2 * shares * tiles, rows, value_dim), q)
    statistics = scratch((2 * shares * tiles, rows, 2), q)
    joins = scratch((tokens, tiles, 2), q)
    furthest = max(abs(cache.stride(1)) for cache in (k_cache, v_cache)) * page_size + max(head_dim, value_dim)
    present = {"SINKS": sinks is not None, "LSE": call.lse is not None}
    launch(
        share_kernels.attend_shares,
        (shares * tiles,),
        (
            *call.stored, offsets, lengths, call.table, sinks, call.out, call.lse, sums, statistics, joins,
            batch, tokens, call.left, q.stride(0), q.stride(1), *k_cache.stride()[:3], *v_cache.stride()[:3],
            offsets.stride(0), lengths.stride(0), *call.table.stride(), call.sinks_stride, factor, softcap * LOG2_E,
            *call.scales,
        ),
        {
            "HEADS": heads, "GROUP": group, "PAGE_SIZE": page_size, "HEAD_DIM": head_dim, "VALUE_DIM": value_dim,
            "BLOCK_M": rows, "BLOCK_N": block_n, "BLOCK_D": padded(head_dim), "BLOCK_V": padded(value_dim),
            "BLOCK_G": next_power_of_two(group), "BLOCK_B": 128 if batch <= 128 else 1024,
            "LEAST": max(1, config.least // block_n), "LEFT": call.left >= 0, "SOFTCAP": softcap > 0,
            "SCALED": not call.scale > 0, **present, "NARROW": furthest < 1 << 31, "UPCAST": INTERPRETED,
            **formats, **config.compiler_options(),
        },
    )  # fmt: skip
    slots, rows_of, columns = _joined(-(-shares // batch) + 1, rows, value_dim)
    launch(
        join_kernels.join,
        (tokens * tiles, -(-min(rows, group) // rows_of), -(-value_dim // columns)),
        (
            sums, statistics, joins, offsets, sinks, call.out, call.lse, batch, tokens, shares,
            offsets.stride(0), call.sinks_stride,
        ),
        {
            "HEADS": heads, "GROUP": group, "VALUE_DIM": value_dim, "BLOCK_M": rows, "BLOCK_S": slots,
            "ROWS": rows_of, "COLUMNS": columns, **present, "num_warps": 4,
        },
    )  # fmt: skip


def _joined(expected: int, rows: int, value_dim: int) -> tuple[int, int, int]:
    """(slots, rows, columns) that a program joins at a time: first of all as many slots as a sequence may have."""
    slots = min(256, next_power_of_two(expected))
    columns = min(next_power_of_two(value_dim), max(32, _AT_A_TIME // slots))
    return slots, max(1, min(rows, _AT_A_TIME // slots // columns)), columns
