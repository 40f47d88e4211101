"""The instances of CK's attention, as translation units."""

from dataclasses import dataclass

from opmux_ck.attention.configs import MFMA_K, AttentionConfig
from opmux_ck.dtypes import CPP

SIGNATURE = "p" * 7 + "ff" + "i" * 20
"""q, k, v, out, lse, the first queries and the first keys of sequences; the scale times log2(e) and the cap; queries,
keys, heads, and heads for each of k; the strides of tokens of q, k, v and out, of heads of these and of lse, of batches
of all five; and the window."""


@dataclass(frozen=True)
class Attention:
    """An instance of attention's forward.

    Attributes:
        x: CK's name of the dtype of q, k, v and out.
        head_dim: elements of a head of q and k.
        value_dim: elements of a head of v and out.
        config: the tile.
        ragged: whether sequences are found by offsets.
        masked: whether a query may see less than all keys.
        capped: whether scores have a cap.
        lse: whether the lse is stored.
    """

    x: str
    head_dim: int
    value_dim: int
    config: AttentionConfig
    ragged: bool
    masked: bool
    capped: bool
    lse: bool

    op = kernel = "attention"
    signature = SIGNATURE

    @property
    def threads(self) -> int:
        """Of a workgroup."""
        return self.config.threads

    @property
    def name(self) -> str:
        """Dtype, head, tile with its steps, waves, matrix instruction, then what it handles."""
        c = self.config
        tile = f"d{self.head_dim}x{self.value_dim}_b{c.queries}x{c.keys}_k{c.dim_step}x{c.key_step}"
        flags = "_ragged" * self.ragged + "_mask" * self.masked + "_cap" * self.capped + "_lse" * self.lse
        return f"{self.op}_{self.x}_{tile}_w{c.waves}_x{c.mfma}x{c.mfma}x{MFMA_K}{flags}"

    def text(self) -> str:
        """The translation unit."""
        c = self.config
        sizes = (c.queries, c.keys, c.dim_step, self.value_dim, c.key_step, self.head_dim, c.waves, c.mfma, MFMA_K)
        flags = ("true" if flag else "false" for flag in (self.ragged, self.masked, self.capped, self.lse))
        values = ", ".join(map(str, (CPP[self.x], *sizes, *flags)))
        return f'// {self.name}\n#include "attention.h"\n\nOPMUX_CK_ATTENTION({values})\n'
