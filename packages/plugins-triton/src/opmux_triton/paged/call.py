"""A call of paged attention: its tensors by name, its results, and its options as kernels take them."""

import math
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from opmux.dtypes import name_of
from opmux_triton.devices import converts_pairs
from opmux_triton.flavours import scale_stride
from opmux_triton.launch import as_bytes
from opmux_triton.paged.configs import PagedConfig


def _format_of(tensor: Tensor) -> str:
    return name_of(tensor.dtype) if tensor.element_size() == 1 else ""


class Call(NamedTuple):
    """One call.

    Attributes:
        lse: None where none is wanted.
        scale: factor on the scores before a cap.
        left: how many keys left of its own a query sees; below 0 all.
        right: the same to the right; 0 with ``causal``.
        longest: upper bound of the new tokens of a sequence.
        reach: upper bound of the keys that a tile may see.
        q_scale, k_scale, v_scale: of 8-bit codes; None for 1.
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
    q_scale: Tensor | None = None
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None

    @classmethod
    def of(
        cls, tensors: tuple[Tensor | None, ...], options: dict[str, Any], config: PagedConfig,
        out: Tensor, lse: Tensor | None,
    ) -> Self:  # fmt: skip
        """Build a call from the core's arguments and the results made for it."""
        q, k_cache, v_cache, offsets, lengths, table, sinks, *scales = tensors
        q_scale, k_scale, v_scale = scales or (None, None, None)
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
            q_scale=q_scale,
            k_scale=k_scale,
            v_scale=v_scale,
        )  # fmt: skip

    @property
    def stored(self) -> tuple[Any, ...]:
        """Queries and caches as kernels take them: those of 8-bit codes as bytes."""
        return tuple(as_bytes(t) if t.element_size() == 1 else t for t in (self.q, self.k_cache, self.v_cache))

    @property
    def scales(self) -> tuple[Tensor | int | None, ...]:
        """The scales, and how far apart those of two kv heads lie."""
        scales = (self.q_scale, self.k_scale, self.v_scale)
        return (*scales, *map(scale_stride, scales))

    @property
    def formats(self) -> dict[str, str | bool]:
        """The kernels' constants that name the formats of 8-bit codes, and how values are read."""
        formats = {"Q_FORMAT": _format_of(self.q), "FORMAT": _format_of(self.k_cache)}
        return {**formats, "PAIRED": bool(formats["FORMAT"]) and self._paired()}

    def _paired(self) -> bool:
        """Whether one new token of each sequence reads values as pairs of 8-bit floats (see `of_pairs`)."""
        v = self.v_cache
        if v.element_size() > 1 or self.longest > 1 or self.q.dtype == torch.float32 or v.dtype == torch.int8:
            return False
        even = not any(size % 2 for size in (v.shape[3], *v.stride()[:3], v.data_ptr()))
        return even and converts_pairs(v)

    @property
    def sinks_stride(self) -> int:
        """0 without sinks."""
        return 0 if self.sinks is None else self.sinks.stride(0)
