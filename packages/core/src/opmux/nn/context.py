"""What the tokens of a call attend to, where they are no dense batch: packed sequences, or something of your own."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import index
from typing import Any, Protocol, Self

import torch
from torch import Tensor

import opmux
from opmux.errors import invalid


class Context(Protocol):
    """What `Attention` hands rotated queries, keys and values to; a class of your own serves as well."""

    @property
    def positions(self) -> Tensor | None:
        """The place of each token in its sequence, where the caller of the module gives none."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, **options: Any) -> Tensor:
        """Compute attention.

        Args:
            q: ``(*tokens, heads, head_dim)``, rotated.
            k: ``(*tokens, kv_heads, head_dim)``, rotated.
            v: ``(*tokens, kv_heads, head_dim)``.
            sinks: ``(heads,)`` or None.
            options: ``scale``, ``causal``, ``window``, ``softcap`` and ``backend``, as `opmux.attention` takes them.

        Returns:
            ``(*tokens, heads, head_dim)``.
        """


@dataclass(frozen=True)
class PackedSequences:
    """Sequences of unequal lengths in one row of tokens, without padding: `opmux.attention_varlen`."""

    cu_seqlens: Tensor
    """int32[sequences + 1], where each begins and the last ends."""
    max_seqlen: int
    """The longest, or more."""
    positions: Tensor | None = None
    """int64[tokens], the place of each token in its sequence."""

    @classmethod
    def of(cls, lengths: Sequence[int], device: Any = None) -> Self:
        """Lay out sequences of these lengths, one at least.

        Raises:
            InvalidArgument: If there is none, or one is no whole number or below 0.
        """
        try:
            counts = [index(length) for length in lengths]
        except TypeError:
            counts = []
        if not counts or min(counts) < 0:
            raise invalid(
                "PackedSequences", "lengths", "whole numbers, one at least, none below 0", repr(lengths),
                "give the number of tokens of each sequence",
            )  # fmt: skip
        positions = torch.cat([torch.arange(length, device=device) for length in counts])
        offsets = torch.tensor(list(accumulate(counts, initial=0)), dtype=torch.int32, device=device)
        return cls(offsets, max(counts), positions)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, **options: Any) -> Tensor:
        """Attend within each sequence; tensors are ``(tokens, heads, head_dim)``."""
        lengths = {"max_seqlen_q": self.max_seqlen, "max_seqlen_k": self.max_seqlen}
        return opmux.attention_varlen(q, k, v, self.cu_seqlens, self.cu_seqlens, sinks, **lengths, **options)
