"""What the core calls for attention whose rows threads copy."""

from functools import lru_cache
from typing import Any

from torch import Tensor

from opmux_cutile.attention import targets
from opmux_cutile.attention.configs import AttentionConfig, ForwardConfig
from opmux_cutile.attention.gathered.configs import CAPPED
from opmux_cutile.launching import TileKernel
from opmux_cutile.parameters import Array, Constant, Parameter, Scalar
from opmux_cutile.tiles import power_of_two

MODULE = "opmux_cutile.attention.gathered.kernels"
NARROWEST = 64
"""Columns of a tile. Keys and values have as many: with fewer, or two widths, more steps are read ahead, and spill."""


def attention(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, *, config: ForwardConfig, **scoring: Any
) -> Tensor:
    """The op `attention`."""
    return targets.dense("attention", q, k, v, sinks, False, tile_of(config, scoring), scoring, kernel_of_rows)[0]


def attention_lse(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, *, config: ForwardConfig, **scoring: Any
) -> tuple[Tensor, Tensor]:
    """The op `attention_lse`."""
    return targets.dense("attention_lse", q, k, v, sinks, True, tile_of(config, scoring), scoring, kernel_of_rows)


def attention_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, sinks: Tensor | None, *,
    max_seqlen_q: int, max_seqlen_k: int, config: ForwardConfig, **scoring: Any,
) -> Tensor:  # fmt: skip
    """The op `attention_varlen`."""
    offsets = cu_seqlens_q, cu_seqlens_k
    return targets.ragged(
        "attention_varlen",
        q,
        k,
        v,
        offsets,
        sinks,
        max_seqlen_q,
        False,
        tile_of(config, scoring),
        scoring,
        kernel_of_rows,
    )[0]


def attention_varlen_lse(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, sinks: Tensor | None, *,
    max_seqlen_q: int, max_seqlen_k: int, config: ForwardConfig, **scoring: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The op `attention_varlen_lse`."""
    offsets = cu_seqlens_q, cu_seqlens_k
    return targets.ragged(
        "attention_varlen_lse",
        q,
        k,
        v,
        offsets,
        sinks,
        max_seqlen_q,
        True,
        tile_of(config, scoring),
        scoring,
        kernel_of_rows,
    )


def tile_of(config: ForwardConfig, scoring: dict[str, Any]) -> ForwardConfig:
    """The tile of a call."""
    return CAPPED if scoring["softcap"] > 0.0 and scoring["window"][0] < 0 else config


@lru_cache(maxsize=1024)
def kernel_of_rows(
    op: str, name: str, config: AttentionConfig, dtype: str, head_dim: int, value_dim: int, capped: bool, banded: bool,
    windowed: bool, sinks: str | None, wants_lse: bool,
) -> TileKernel:  # fmt: skip
    """The kernel for heads of a size. Without an lse, its place is taken by a tensor that is not written."""
    keys, values = (Array(dtype, (None,) * 3 + (dim,), (None,) * 3 + (1,), True) for dim in (head_dim, value_dim))
    offsets = [Array("int32", (None,), (1,), False)] * (2 if name == "ragged" else 0)
    logits = Array(sinks or "float32", (None,), (1,), False)
    lse = Array("float32", (None,) * 3, (None,) * 3, False)
    numbers = [Scalar("float32")] * 2 + [Scalar("int32")] * 3
    columns = max(power_of_two(max(head_dim, value_dim)), NARROWEST)
    sizes = (config.block_m, config.block_n, columns, columns, capped, banded, windowed, sinks is not None, wants_lse)
    parameters: tuple[Parameter, ...] = (
        keys, keys, values, *offsets, logits, values, lse, *numbers, *map(Constant, sizes),
    )  # fmt: skip
    return TileKernel(op, MODULE, f"{name}_gathered", parameters, config.hints)
