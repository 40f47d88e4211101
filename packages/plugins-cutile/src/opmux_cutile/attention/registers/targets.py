"""What the core calls for attention where both operands of the matrix units come from registers."""

from typing import Any

from torch import Tensor

from opmux_cutile.attention.configs import AttentionConfig, ForwardConfig
from opmux_cutile.attention.gathered.targets import kernel_of_rows
from opmux_cutile.attention.registers.configs import WIDEST_OF_TILES
from opmux_cutile.attention.targets import dense, kernel_of_tiles, ragged
from opmux_cutile.launching import TileKernel


def attention(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, *, config: ForwardConfig, **scoring: Any
) -> Tensor:
    """The op `attention`."""
    return dense("attention", q, k, v, sinks, False, config, scoring, kernel_of)[0]


def attention_lse(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, *, config: ForwardConfig, **scoring: Any
) -> tuple[Tensor, Tensor]:
    """The op `attention_lse`."""
    return dense("attention_lse", q, k, v, sinks, True, config, scoring, kernel_of)


def attention_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, sinks: Tensor | None, *,
    max_seqlen_q: int, max_seqlen_k: int, config: ForwardConfig, **scoring: Any,
) -> Tensor:  # fmt: skip
    """The op `attention_varlen`."""
    offsets = cu_seqlens_q, cu_seqlens_k
    return ragged("attention_varlen", q, k, v, offsets, sinks, max_seqlen_q, False, config, scoring, kernel_of)[0]


def attention_varlen_lse(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, sinks: Tensor | None, *,
    max_seqlen_q: int, max_seqlen_k: int, config: ForwardConfig, **scoring: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The op `attention_varlen_lse`."""
    offsets = cu_seqlens_q, cu_seqlens_k
    return ragged("attention_varlen_lse", q, k, v, offsets, sinks, max_seqlen_q, True, config, scoring, kernel_of)


def kernel_of(
    op: str, name: str, config: AttentionConfig, dtype: str, head_dim: int, value_dim: int, *traits: Any
) -> TileKernel:
    """The kernel whose rows are loaded as tiles, or that for wide heads, whose rows threads copy."""
    make = kernel_of_rows if max(head_dim, value_dim) > WIDEST_OF_TILES else kernel_of_tiles
    return make(op, name, config, dtype, head_dim, value_dim, *traits)
