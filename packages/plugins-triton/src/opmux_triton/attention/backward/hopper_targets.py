"""What the core calls for attention's backward on sm_90: descriptors and the launches around the Gluon kernel."""

import math
from typing import Any

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from opmux_triton.arithmetic import padded
from opmux_triton.attention.backward import hopper_kernels as kernels
from opmux_triton.attention.backward import targets
from opmux_triton.attention.backward.configs import HopperConfig
from opmux_triton.attention.backward.hopper_query_kernels import sum_of_queries
from opmux_triton.attention.backward.shares import Parts, add_parts, parts_for, shares_for
from opmux_triton.attention.backward.targets import Gradients
from opmux_triton.descriptors import has_descriptor
from opmux_triton.devices import units
from opmux_triton.hopper.descriptors import head_descriptor
from opmux_triton.launch import launch
from opmux_triton.repeats import scratch
from opmux_triton.scoring.options import Scoring

_NAME = "attention backward on sm_90"
_NUMBERS = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=1)
_REGISTERS = (240, 168)
"""Registers of a computing thread, and of a thread on average."""
_KEYS = 128
_NOTED_QUERIES = 64
_PANEL = 64 * 64
_FEW = 4
"""Programs for each multiprocessor up to which the tiles of all pairs run in order of their lengths."""


def attention_backward(*tensors: Any, output_mask: tuple[bool, ...], config: HopperConfig, **options: Any) -> Gradients:
    """The op `attention_backward`."""
    return targets.dense(_NAME, _fill, tensors, Scoring(**options), output_mask, config)


def _fill(tensors: tuple[Any, ...], grads: Gradients, scoring: Scoring, config: HopperConfig) -> None:
    """Launch the kernels, called like those of `targets.dense`."""
    grad_out, q, k, v = tensors[:4]
    grad_q, grad_k, grad_v, _ = grads
    batch, queries, heads, head_dim = q.shape
    keys, kv_heads = k.shape[1], k.shape[2]
    lengths = (queries, keys)
    width = padded(head_dim)
    rows = 2 * _PANEL // width
    row = -(-queries // rows) * rows
    suits = (
        all(grad.numel() for grad in grads[:3])
        and scoring.scale != 0
        and batch * heads * row * width < 1 << 31
        and all(has_descriptor(x) for x in (grad_out, q, k, v))
    )
    if not suits:
        targets.portable(tensors, grads, None, lengths, scoring, config.otherwise)
        return
    left, right, *sides = scoring.declared_band(queries, keys)
    factor = scoring.scale_for(head_dim)
    panels = row * width // _PANEL
    tiles, pairs = -(-keys // _KEYS), batch * kv_heads
    sums = scratch((batch * heads * panels * _PANEL,), q)
    notes = targets.notes_for(q, tiles * pairs) if left or right else None
    statistics = targets.statistics_of(tensors, None, grads, config.otherwise, row, sums, notes)
    steps = heads // kv_heads * (row // rows)
    device = units(q)
    shares = config.shares or shares_for(tiles * pairs, steps, device, left or right)
    # Few programs run at the same time anyway; the longest of all pairs have to begin first.
    few = tiles * pairs * shares <= _FEW * device
    together = pairs * shares if few or not config.together else min(config.together * shares, pairs * shares)
    results = Parts(grad_k, grad_v) if shares == 1 else parts_for(grad_k, grad_v, shares, zero=False)
    in_bulk = TensorDescriptor(sums, [sums.numel()], [1], [_PANEL], _NUMBERS) if config.bulk else None
    computing, average = _REGISTERS
    numbers = TensorDescriptor(statistics.view(-1), [statistics.numel()], [1], [rows], _NUMBERS)
    arguments = (
        sums, in_bulk, *results, notes, head_descriptor(q, rows, width), head_descriptor(k, 64, width),
        head_descriptor(v, 64, width), head_descriptor(grad_out, rows, width), numbers,
        pairs, kv_heads, heads // kv_heads, shares, queries, keys, tiles, together, row,
        batch * heads * row, panels, factor, math.log(2) / factor, *sides,
    )  # fmt: skip
    meta = {
        "COLUMNS": head_dim,
        "HEAD_DIM": width,
        "LEFT": left,
        "RIGHT": right,
        "ROWS": rows,
        "STAGES": config.stages,
        "QUERIES": True,
        "LATE": config.late,
        "REGISTERS": computing,
        "num_warps": 4,
        "maxnreg": average,
    }
    launch(kernels.attention_backward, (tiles * pairs * shares,), arguments, meta)
    if shares > 1:
        add_parts(results, grad_k, grad_v, shares)
    blocks = -(-queries // _NOTED_QUERIES)
    of_queries = targets.notes_for(q, blocks * batch * heads) if left or right else None
    arguments_of_sum = (sums, grad_q, of_queries, queries, heads, batch * heads, panels, factor)
    meta = {"COLUMNS": head_dim, "HEAD_DIM": width, "NOTED": of_queries is not None, "num_warps": 4}
    launch(sum_of_queries, (blocks * batch * heads,), arguments_of_sum, meta)
    if left or right:
        noted = (notes, _KEYS), (of_queries, _NOTED_QUERIES)
        targets.products(tensors, statistics, grads, None, lengths, scoring, config.otherwise, noted)
