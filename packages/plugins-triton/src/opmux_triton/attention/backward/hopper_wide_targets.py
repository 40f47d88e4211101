"""What the core calls for attention's backward on sm_90 where heads are wider than 128."""

from typing import Any

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from opmux_triton.attention.backward import targets
from opmux_triton.attention.backward.configs import WideConfig
from opmux_triton.attention.backward.hopper_wide_kernels import wide_keys_values
from opmux_triton.attention.backward.hopper_wide_query_kernels import wide_queries
from opmux_triton.attention.backward.targets import Gradients, Noted
from opmux_triton.descriptors import has_descriptor
from opmux_triton.devices import units
from opmux_triton.hopper.descriptors import head_descriptor
from opmux_triton.launch import launch
from opmux_triton.scoring.options import Scoring

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
    grad_out, q, k, v = tensors[:4]
    batch, queries, heads, _ = q.shape
    lengths = (queries, k.shape[1])
    scoring = Scoring(**options)
    numbers = 2 * batch * heads * -(-queries // _SIDE) * _SIDE  # places among them are 32-bit integers
    suits = (
        all(output_mask[:3])
        and batch > 0
        and scoring.scale != 0
        and numbers < 1 << 31
        and all(has_descriptor(x) for x in (grad_out, q, k, v))
    )
    if not suits:
        return targets.run(tensors, None, None, lengths, scoring, output_mask, config.otherwise)

    def fast(statistics: Tensor, grad_q: Tensor, grad_k: Tensor, grad_v: Tensor) -> tuple[Noted, Noted]:
        return _products(tensors[:4], scoring, config, statistics, (grad_q, grad_k, grad_v))

    return targets.run(
        tensors, None, None, lengths, scoring, output_mask, config.otherwise, fast=fast, row_multiple=_SIDE
    )


def column_parts(columns: int) -> tuple[int, int]:
    """(columns, rest): the powers of two in which the kernels hold a head; a rest of 0 is none."""
    if columns > 192:
        return 256, 0
    return 128, 64 if columns > 128 else 0


def _products(
    tensors: tuple[Any, ...],
    scoring: Scoring,
    config: WideConfig,
    statistics: Tensor,
    gradients: tuple[Tensor, Tensor, Tensor],
) -> tuple[Noted, Noted]:
    """Launch both kernels: for keys and values, and for queries."""
    grad_out, q, k, v = tensors
    grad_q, grad_k, grad_v = gradients
    batch, queries, heads, head_dim = q.shape
    keys, kv_heads, value_dim = k.shape[1], k.shape[2], v.shape[3]
    left, right, *sides = scoring.declared_band(queries, keys)
    masked = left or right
    row = statistics.shape[3]
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

    tiles, pairs = -(-keys // _SIDE), batch * kv_heads
    of_keys = _notes(q, tiles * pairs) if masked else None
    numbers = TensorDescriptor(statistics.view(-1), [statistics.numel()], [1], [_SIDE], _NUMBERS)
    arguments = (
        grad_k, grad_v, of_keys, *descriptors, numbers,
        pairs, kv_heads, heads // kv_heads, queries, keys, tiles, section(tiles, pairs), *rows,
    )  # fmt: skip
    launch(wide_keys_values, (tiles * pairs,), arguments, {**meta, "VALUE_DIM": value_dim})

    tiles, pairs = -(-queries // _QUERIES), batch * heads
    of_queries = _notes(q, -(-queries // _SIDE) * pairs) if masked else None
    arguments = (
        statistics, grad_q, of_queries, *descriptors,
        pairs, heads, heads // kv_heads, queries, keys, tiles, section(tiles, pairs), *rows,
    )  # fmt: skip
    # At 256 columns there is room for one block of values, which are read once, beside two of keys.
    v_stages = 1 if head + value > 2 * 192 else config.stages
    launch(wide_queries, (tiles * pairs,), arguments, {**meta, "V_STAGES": v_stages})
    return (of_keys, _SIDE), (of_queries, _SIDE)


def _notes(like: Tensor, count: int) -> Tensor:
    """Memory for notes, with nothing noted."""
    return torch.zeros((count,), dtype=torch.int32, device=like.device)
