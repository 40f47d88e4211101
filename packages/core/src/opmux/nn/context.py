"""What the tokens of a call attend to when they are not a dense batch: packed sequences, or a class of your own."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import index
from typing import Any, Protocol, Self

import torch
from torch import Tensor

import opmux
from opmux.errors import invalid
from opmux.signatures.validation import describe


class Context(Protocol):
    """The object to which `Attention` passes rotated queries, keys and values; any class with these members works."""

    @property
    def positions(self) -> Tensor | None:
        """The position of each token in its sequence, used when the caller of the module passes none."""

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
    """Sequences of different lengths concatenated without padding, for `opmux.attention_varlen`."""

    cu_seqlens: Tensor
    """int32[sequences + 1]: where each sequence begins, then where the last one ends."""
    max_seqlen: int
    """An upper bound on the sequence lengths."""
    positions: Tensor | None = None
    """int64[tokens]: the position of each token in its sequence."""

    @classmethod
    def of(cls, lengths: Sequence[int], device: Any = None) -> Self:
        """Lay out one or more sequences of these lengths.

        Raises:
            InvalidArgument: If there are no lengths, or one is negative or not a whole number.
        """
        try:
            counts = [index(length) for length in lengths]
        except TypeError:
            counts = []
        if not counts or min(counts) < 0:
            raise invalid(
                "PackedSequences", "lengths", "at least one whole number, none below 0", repr(lengths),
                "give the number of tokens of each sequence",
            )  # fmt: skip
        positions = torch.cat([torch.arange(length, device=device) for length in counts])
        offsets = torch.tensor(list(accumulate(counts, initial=0)), dtype=torch.int32, device=device)
        return cls(offsets, max(counts), positions)

    def __post_init__(self) -> None:
        """Check that the fields agree, without reading anything from a device.

        Raises:
            InvalidArgument: If the fields do not describe the same sequences.
        """
        offsets = self.cu_seqlens
        if offsets.ndim != 1 or offsets.shape[0] < 2 or offsets.dtype != torch.int32:
            raise invalid(
                "PackedSequences", "cu_seqlens", "int32[sequences + 1] for at least one sequence", describe(offsets),
                "make it with PackedSequences.of",
            )  # fmt: skip
        if self.positions is not None and self.positions.ndim != 1:
            raise invalid("PackedSequences", "positions", "int64[tokens]", describe(self.positions), "flatten it")
        if offsets.device.type != "cpu" or torch.compiler.is_compiling():
            return
        total = int(offsets[-1])
        if self.positions is not None and self.positions.shape[0] < total:
            raise invalid(
                "PackedSequences", "positions", f"at least {total} tokens, where `cu_seqlens` ends",
                f"{self.positions.shape[0]}", "give each token of the sequences its position",
            )  # fmt: skip
        longest = int(offsets.diff().max())
        if self.max_seqlen < longest:
            raise invalid(
                "PackedSequences", "max_seqlen", f"at least {longest}, the longest sequence in `cu_seqlens`",
                f"{self.max_seqlen}", "give an upper bound of all lengths",
            )  # fmt: skip

    def attend(self, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, **options: Any) -> Tensor:
        """Attend within each sequence; tensors are ``(tokens, heads, head_dim)``.

        Raises:
            InvalidArgument: If there are more or fewer tokens than the sequences have.
        """
        if self.positions is not None and q.shape[0] != self.positions.shape[0]:
            raise invalid(
                "PackedSequences", "q", f"{self.positions.shape[0]} tokens, the total of all sequences",
                f"{q.shape[0]}", "pass the PackedSequences of this call",
            )  # fmt: skip
        lengths: dict[str, Any] = {"max_seqlen_q": self.max_seqlen, "max_seqlen_k": self.max_seqlen}
        return opmux.attention_varlen(q, k, v, self.cu_seqlens, self.cu_seqlens, sinks, **lengths, **options)
