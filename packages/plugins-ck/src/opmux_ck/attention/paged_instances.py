"""The instances of CK's attention over pages, and of the kernel that combines parts, as translation units."""

from dataclasses import dataclass

from opmux_ck.attention.configs import MFMA_K
from opmux_ck.attention.paged_configs import MOST_PARTS, MOST_PARTS_LOG2, PagedConfig
from opmux_ck.dtypes import CPP


@dataclass(frozen=True)
class PagedAttention:
    """An instance of attention over pages.

    Attributes:
        x: CK's name of the dtype of q and the caches.
        head_dim: elements of a head of q and k.
        value_dim: elements of a head of v and out.
        config: the tile; of its parts it matters whether there are several, whose results are float32.
        masked: whether a query may see less than all keys; if not, the heads that share keys are rows of one tile.
        capped: whether scores have a cap.
        lse: whether the lse is stored.
    """

    x: str
    head_dim: int
    value_dim: int
    config: PagedConfig
    masked: bool
    capped: bool
    lse: bool

    op = kernel = "paged_attention"
    signature = "p" * 8 + "ff" + "i" * 21
    """q, k, v, out, lse, the first queries and the lengths of sequences, their pages; the scale times log2(e) and the
    cap; queries, the page size, heads, heads for each of k, parts; the strides of tokens of q, k, v and out, of heads
    of these and of lse, of pages of k and v, of sequences in the table, of parts of out and lse; and the window."""

    @property
    def threads(self) -> int:
        """Of a workgroup."""
        return self.config.threads

    @property
    def name(self) -> str:
        """Dtype, head, tile with its steps, waves, matrix instruction, then what it handles."""
        c = self.config
        tile = f"d{self.head_dim}x{self.value_dim}_b{c.queries}x{c.keys}_k{c.dim_step}x{c.key_step}"
        flags = "_parts" * (c.parts > 1) + "_mask" * self.masked + "_cap" * self.capped + "_lse" * self.lse
        return f"{self.op}_{self.x}_{tile}_w{c.waves}_x{c.mfma}x{c.mfma}x{MFMA_K}{flags}"

    def text(self) -> str:
        """The translation unit."""
        c = self.config
        sizes = (c.queries, c.keys, c.dim_step, self.value_dim, c.key_step, self.head_dim, c.waves, c.mfma, MFMA_K)
        flags = ("true" if flag else "false" for flag in (self.masked, self.capped, self.lse))
        dtypes = CPP[self.x], CPP["fp32" if c.parts > 1 else self.x]
        values = ", ".join(map(str, (*dtypes, *sizes, *flags)))
        return f'// {self.name}\n#include "paged_attention.h"\n\nOPMUX_CK_PAGED_ATTENTION({values})\n'


@dataclass(frozen=True)
class CombinedParts:
    """An instance of the kernel that combines the results of parts of the keys.

    Attributes:
        x: CK's name of the dtype of out; parts are float32.
        value_dim: elements of a head of out.
        lse: whether the lse of all parts is stored.
    """

    x: str
    value_dim: int
    lse: bool

    op = "paged_attention"
    kernel = "combined_parts"
    signature = "p" * 5 + "i" * 9
    """out, lse, the parts of both, the first queries of sequences; parts; the strides of tokens and heads of out, of
    heads of lse, of tokens and heads of the parts of out, of heads of the parts of lse, and of parts of both."""
    threads = 256
    columns, rows = 32, 8
    """Of the elements and the queries that a workgroup combines."""

    @property
    def name(self) -> str:
        """Dtype, the elements of a head, the most parts."""
        return f"{self.kernel}_{self.x}_d{self.value_dim}_p{MOST_PARTS}" + "_lse" * self.lse

    def text(self) -> str:
        """The translation unit."""
        values = f"{CPP[self.x]}, {self.value_dim}, {MOST_PARTS_LOG2}, {str(self.lse).lower()}"
        return f'// {self.name}\n#include "paged_attention.h"\n\nOPMUX_CK_COMBINED_PARTS({values})\n'
