"""What the core calls for attention's backward on sm_90 where heads are wider than 128."""

from typing import Any

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from opmux_triton.attention.backward import targets
from opmux_triton.attention.backward.configs import WideConfig
from opmux_triton.attention.backward.hopper_wide_kernels import wide_keys_values
from opmux_triton.attention.backward.hopper_wide_query_kernels import wide_queries
from opmux_triton.attention.backward.targets import Gradients
from opmux_triton.descriptors import has_descriptor
from opmux_triton.devices import units
from opmux_triton.hopper.descriptors import head_descriptor
from opmux_triton.launch import launch
from opmux_triton.scoring.options import Scoring

_NAME = "attention backward of wide heads on sm_90"
_NUMBERS = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=1)
_REGISTERS = (240, 168)
"""Registers of a computing thread, and of a thread on average."""
_SIDE = 64
"""Keys of a program, queries of a block, and columns that are loaded at a time."""
_QUERIES = 128
"""Queries of a program of the kernel for their gradients."""
_FEW = 4
"""Rounds of programs up to which all pairs run together, so that the last round is even."""


def attention_backward(*tensors: Any, output_mask: tuple[bool, ...], config: WideConfig, **options: Any) -> Gradients:
    """The op `attention_backward`."""
    return targets.dense(_NAME, _fill, tensors, Scoring(**options), output_mask, config)


def column_parts(columns: int) -> tuple[int, int]:
    """(columns, rest): the powers of two in which the kernels hold a head; a rest of 0 is none."""
    if columns > 192:
        return 256, 0
    return 128, 64 if columns > 128 else 0


def _fill(tensors: tuple[Any, ...], grads: Gradients, scoring: Scoring, config: WideConfig) -> None:
    """Launch both kernels: for keys and values, and for queries. Called like those of `targets.dense`."""
    grad_out, q, k, v = tensors[:4]
    grad_q, grad_k, grad_v, _ = grads
    batch, queries, heads, head_dim = q.shape
    keys, kv_heads, value_dim = k.shape[1], k.shape[2], v.shape[3]
    lengths = (queries, keys)
    row = -(-queries // _SIDE) * _SIDE
    suits = (
        all(grad.numel() for grad in grads[:3])
        and scoring.scale != 0
        and 2 * batch * heads * row < 1 << 31  # places among the statistics are 32-bit integers
        and all(has_descriptor(x) for x in (grad_out, q, k, v))
    )
    if not suits:
        targets.portable(tensors, grads, None, lengths, scoring, config.otherwise)
        return
    left, right, *sides = scoring.declared_band(queries, keys)
    masked = left or right
    tiles_k, tiles_q, pairs, query_pairs = -(-keys // _SIDE), row // _SIDE, batch * kv_heads, batch * heads
    notes = of_keys = of_queries = None
    if masked:
        notes = targets.notes_for(q, tiles_k * pairs + tiles_q * query_pairs)
        of_keys, of_queries = notes[: tiles_k * pairs], notes[tiles_k * pairs :]
    statistics = targets.statistics_of(tensors, None, grads, config.otherwise, row, None, notes)
    rows = (row, batch * heads * row, scoring.scale_for(head_dim), *sides)
    head, head_rest = column_parts(head_dim)
    value, value_rest = column_parts(value_dim)
    descriptors = [head_descriptor(x, _SIDE, _SIDE) for x in (q, k, v, grad_out)]
    computing, average = _REGISTERS
    meta = {
        "HEAD_DIM": head_dim,
        "HEAD": head,
        "HEAD_REST": head_rest,
        "VALUE": value,
        "VALUE_REST": value_rest,
        "LEFT": left,
        "RIGHT": right,
        "STAGES": config.stages,
        "REGISTERS": computing,
        "num_warps": 4,
        "maxnreg": average,
    }

    def section(tiles: int, pairs: int) -> int:
        few = tiles * pairs <= _FEW * units(q)
        return pairs if few or not config.together else min(config.together, pairs)

    numbers = TensorDescriptor(statistics.view(-1), [statistics.numel()], [1], [_SIDE], _NUMBERS)
    arguments = (
        grad_k, grad_v, of_keys, *descriptors, numbers,
        pairs, kv_heads, heads // kv_heads, queries, keys, tiles_k, section(tiles_k, pairs), *rows,
    )  # fmt: skip
    launch(wide_keys_values, (tiles_k * pairs,), arguments, {**meta, "VALUE_DIM": value_dim})

    tiles = -(-queries // _QUERIES)
    arguments = (
        statistics, grad_q, of_queries, *descriptors,
        query_pairs, heads, heads // kv_heads, queries, keys, tiles, section(tiles, query_pairs), *rows,
    )  # fmt: skip
    # At 256 columns there is room for one block of values, which are read once, beside two of keys.
    v_stages = 1 if head + value > 2 * 192 else config.stages
    launch(wide_queries, (tiles * query_pairs,), arguments, {**meta, "V_STAGES": v_stages})
    if masked:
        noted = (of_keys, _SIDE), (of_queries, _SIDE)
        targets.products(tensors, statistics, grads, None, lengths, scoring, config.otherwise, noted)
