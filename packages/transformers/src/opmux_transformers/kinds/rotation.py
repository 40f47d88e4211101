"""How an attention's forward rotates queries and keys, and the function by which `opmux.apply_rope` does it."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import opmux
from opmux_transformers.foreign import mark


@dataclass(frozen=True)
class Layout:
    """How tables hold their angles, as the last dim of cos and sin shows.

    Attributes:
        half: The number of angles.
        pairs: Whether an angle that is held twice lies beside itself, rather than in the second half.
    """

    half: int
    pairs: bool = False

    def once(self, table: Tensor) -> Tensor:
        """Every angle of a table once; the table itself if it holds them so."""
        if table.shape[-1] == self.half:
            return table
        return table[..., ::2] if self.pairs else table[..., : self.half]

    def fits(self, table: Tensor) -> bool:
        """Whether a table holds every angle twice in this way, or once."""
        if table.shape[-1] == self.half:
            return True
        twice = (table[..., ::2], table[..., 1::2]) if self.pairs else table.split(self.half, -1)
        return table.shape[-1] == 2 * self.half and torch.equal(*twice)


@dataclass(frozen=True)
class Rope:
    """How a forward rotates.

    Attributes:
        name: The global that it calls.
        layout: How it gets the angles.
        form: What the function takes, a name in `FORMS`.
        interleaved: Whether a pair is two neighbouring dims of a head rather than one dim of each half.
        sorted: Whether it puts neighbouring dims into halves first, and leaves them there (DeepSeek-V3).
        heads_first: Whether the heads come before the tokens, where no argument of the function says so.
    """

    name: str
    layout: Layout
    form: str = "pair"
    interleaved: bool = False
    sorted: bool = False
    heads_first: bool = True

    @property
    def rotary_dim(self) -> int:
        """The number of dims of a head that are rotated."""
        return 2 * self.layout.half


def _pair(rope: Rope) -> Callable[..., tuple[Tensor, Tensor]]:
    """A function ``(q, k, cos, sin)``."""

    def rotate(
        q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1, **_: Any
    ) -> tuple[Tensor, Tensor]:
        if unsqueeze_dim != 1:
            return _rotated(rope, q, k, cos, sin)
        q, k = _rotated(rope, q.transpose(1, 2), k.transpose(1, 2), cos, sin)
        return q.transpose(1, 2), k.transpose(1, 2)

    return rotate


def _lone(rope: Rope) -> Callable[..., Tensor]:
    """A function ``(x, cos, sin)``: the op gets x as queries, and no keys."""

    def rotate(x: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1, **_: Any) -> Tensor:
        if unsqueeze_dim != 1:
            return _rotated(rope, x, x[:, :, :0], cos, sin)[0]
        x = x.transpose(1, 2)
        return _rotated(rope, x, x[:, :, :0], cos, sin)[0].transpose(1, 2)

    return rotate


def _complex(rope: Rope) -> Callable[..., tuple[Tensor, Tensor]]:
    """A function ``(q, k, freqs_cis)`` of complex numbers ``cos + i sin``."""

    def rotate(q: Tensor, k: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = torch.view_as_real(freqs_cis).unbind(-1)
        if not rope.heads_first:
            return _rotated(rope, q, k, cos, sin)
        q, k = _rotated(rope, q.transpose(1, 2), k.transpose(1, 2), cos, sin)
        return q.transpose(1, 2), k.transpose(1, 2)

    return rotate


FORMS: dict[str, Callable[[Rope], Callable[..., Any]]] = {"pair": _pair, "lone": _lone, "complex": _complex}
"""How the function that replaces a module's own is made, by what that takes (see `probe.rotary_form`)."""


@functools.cache
def function_of(rope: Rope) -> Callable[..., Any]:
    """The rotary function that replaces a module's own."""
    return mark(FORMS[rope.form](rope))


def _rotated(rope: Rope, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate ``(batch, seq, heads, head_dim)`` by tables ``(batch or 1, seq, width)``."""
    if rope.sorted:
        q, k = (torch.cat((x[..., ::2], x[..., 1::2]), -1) for x in (q, k))
    rows = cos.shape[0]
    # (rows * seq, half) float32: one row of the tables for each token, or one for each position of all sequences
    cos, sin = _rows(cos, rope.layout), _rows(sin, rope.layout)
    batch, seq = q.shape[:2]
    if rows == 1 or batch == 1:
        return opmux.apply_rope(q, k, cos, sin, interleaved=rope.interleaved)
    if seq == 1:
        q, k = opmux.apply_rope(q.squeeze(1), k.squeeze(1), cos, sin, interleaved=rope.interleaved)
        return q.unsqueeze(1), k.unsqueeze(1)
    positions = torch.arange(batch * seq, device=q.device).view(batch, seq)
    return opmux.apply_rope(q, k, cos, sin, positions, interleaved=rope.interleaved)


def _rows(table: Tensor, layout: Layout) -> Tensor:
    """The tables as rows; only a view if they were halved for all layers, since every layer calls this."""
    table = layout.once(table).reshape(-1, layout.half).contiguous()
    return table if table.dtype == torch.float32 else table.to(torch.float32)
