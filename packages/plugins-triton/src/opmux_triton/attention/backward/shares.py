"""Between how many programs the query blocks of a tile of keys are divided, and the sum of their parts.

A program that owns a tile of keys goes through the queries of all heads of its group. With few key and value heads and
a small batch there are fewer such programs than multiprocessors. Then several programs take a share of the query blocks
each and write float32 parts, ``(batch, keys, kv_heads, shares, dim)``, which `sum_of_shares` adds in a fixed order and
rounds once.

The parts need ``4 * shares * (head_dim + value_dim)`` bytes for each key of each key and value head. Shares are only
chosen while they give at most `_MOST_WAVES` programs for each that the device runs at a time, so the parts of tiles of
128 keys with 128 columns take at most ``512 KiB`` for each multiprocessor.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from opmux_triton.arithmetic import padded
from opmux_triton.attention.backward import share_kernels as kernels
from opmux_triton.attention.backward.configs import SHARES
from opmux_triton.launch import launch
from opmux_triton.repeats import scratch

_MOST_WAVES = 4
_FIXED = 3.0
"""What a program takes before its first and after its last step, in steps."""
_PARTS = 4.0
"""What writing and adding the parts of a whole wave of programs takes, in steps."""
_LAUNCH = 1.0
"""What another launch takes, in steps."""
_WORTH = 0.95
"""Shares are taken only if they promise less than this much of the time without."""


class Parts(NamedTuple):
    """Float32 parts of the gradients of keys and of values; a gradient that is not wanted has none."""

    k: Tensor
    v: Tensor


def shares_for(programs: int, steps: int, slots: int, triangular: bool) -> int:
    """The number of shares that promises the shortest time.

    Args:
        programs: that there are with one share.
        steps: query blocks that the program with the most goes through.
        slots: programs that the device runs at the same time.
        triangular: whether programs differ in their steps, from none to ``steps``, the longest first.
    """
    times = {
        shares: _time(programs, steps, slots, triangular, shares)
        for shares in SHARES
        if shares == 1 or (shares <= steps and programs * shares <= _MOST_WAVES * slots)
    }
    best = min(times, key=lambda shares: times[shares])
    return best if times[best] < _WORTH * times[1] else 1


def _time(programs: int, steps: int, slots: int, triangular: bool, shares: int) -> float:
    """In steps, roughly."""
    longest = -(-steps // shares) + _FIXED
    waves = programs * shares / slots
    if triangular:
        # The short ones fill the gaps that the long ones leave.
        time = max(longest, waves * (steps / (2 * shares) + _FIXED) + longest / 4)
    else:
        time = -(-programs * shares // slots) * longest
    return time + (_LAUNCH + _PARTS * waves if shares > 1 else 0.0)


def parts_for(grad_k: Tensor, grad_v: Tensor, shares: int, *, zero: bool) -> Parts:
    """Memory for the parts of gradients ``(batch, keys, kv_heads, dim)``.

    Args:
        grad_k, grad_v: the gradients; an empty one is not wanted.
        shares: how many parts each has.
        zero: whether programs leave some of it unwritten, which must be zero then.
    """

    def parts(gradient: Tensor) -> Tensor:
        if not gradient.numel():
            return gradient
        shape = (*gradient.shape[:3], shares, gradient.shape[3])
        return gradient.new_zeros(shape, dtype=torch.float32) if zero else scratch(shape, gradient)

    return Parts(parts(grad_k), parts(grad_v))


def add_parts(parts: Parts, grad_k: Tensor, grad_v: Tensor, shares: int) -> None:
    """Sum the parts into the gradients."""
    wanted = [g for g in (grad_k, grad_v) if g.numel()]
    if not wanted:
        return
    batch, keys, kv_heads, _ = wanted[0].shape
    dims = [g.shape[3] if g.numel() else wanted[0].shape[3] for g in (grad_k, grad_v)]
    rows = batch * keys * kv_heads
    blocks = [-(-rows // _ROWS) if g.numel() else 0 for g in (grad_k, grad_v)]
    meta: dict[str, Any] = {
        "HEAD_DIM": dims[0],
        "VALUE_DIM": dims[1],
        "BLOCK_D": padded(dims[0]),
        "BLOCK_V": padded(dims[1]),
        "ROWS": _ROWS,
        "num_warps": 4,
    }
    launch(kernels.sum_of_shares, (sum(blocks),), (*parts, grad_k, grad_v, rows, blocks[0], shares), meta)


_ROWS = 16
"""Rows that a program of `sum_of_shares` adds."""
