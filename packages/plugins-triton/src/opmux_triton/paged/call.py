"""A call of paged attention: its tensors by name, its results, and its options as kernels take them."""

import math
from typing import Any, NamedTuple, Self

from torch import Tensor

from opmux_triton.paged.configs import PagedConfig


class Call(NamedTuple):
    """One call.

    Attributes:
        lse: None where none is wanted.
        scale: factor on the scores before a cap.
        left: how many keys left of its own a query sees; below 0 all.
        right: the same to the right; 0 with ``causal``.
        longest: upper bound of the new tokens of a sequence.
        reach: upper bound of the keys that a tile may see.
    """

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    offsets: Tensor
    lengths: Tensor
    table: Tensor
    sinks: Tensor | None
    out: Tensor
    lse: Tensor | None
    scale: float
    softcap: float
    left: int
    right: int
    longest: int
    reach: int
    config: PagedConfig

    @classmethod
    def of(
        cls, tensors: tuple[Tensor | None, ...], options: dict[str, Any], config: PagedConfig,
        out: Tensor, lse: Tensor | None,
    ) -> Self:  # fmt: skip
        """Build a call from the core's arguments and the results made for it."""
        q, k_cache, v_cache, offsets, lengths, table, sinks, *_ = tensors
        assert q is not None
        assert k_cache is not None
        assert v_cache is not None
        assert offsets is not None
        assert lengths is not None
        assert table is not None
        head_dim = q.shape[2]
        left, right = options["window"]
        longest, reach = options["max_seqlen_q"], max(0, options["max_seqlen_k"])
        return cls(
            q, k_cache, v_cache, offsets, lengths, table, sinks,
            out=out,
            lse=lse,
            scale=options["scale"] if options["scale"] is not None else 1 / math.sqrt(max(1, head_dim)),
            softcap=options["softcap"],
            left=left,
            right=0 if options["causal"] else right,
            longest=longest,
            reach=min(reach, left + longest) if left >= 0 else reach,
            config=config,
        )  # fmt: skip

    @property
    def sinks_stride(self) -> int:
        """0 without sinks."""
        return 0 if self.sinks is None else self.sinks.stride(0)
