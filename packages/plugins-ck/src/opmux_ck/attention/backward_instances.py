"""The instances of CK's gradients of attention, as translation units."""

from dataclasses import dataclass

from opmux_ck.attention.backward_configs import BackwardConfig
from opmux_ck.dtypes import CPP


@dataclass(frozen=True)
class AttentionBackward:
    """An instance of the gradients of q, k and v.

    Attributes:
        x: CK's name of the dtype of q, k, v and the gradient of out.
        head_dim: elements of a head.
        config: the tile.
        ragged: whether sequences are found by offsets.
        masked: whether a query may see less than all keys.
        shared: whether several heads share keys, whose gradients are then float32, for each head.
    """

    x: str
    head_dim: int
    config: BackwardConfig
    ragged: bool
    masked: bool
    shared: bool

    op = kernel = "attention_backward"
    signature = "p" * 11 + "ff" + "i" * 29
    """q, k, v, the gradient of out, lse, the shift of the gradients of scores, the gradients of q, k and v, the first
    queries and the first keys of sequences; the scale, and that times log2(e); queries, keys, heads, and heads for each
    of k; the strides of tokens of q, k, v and of the gradients of out, q, k and v, of heads and of batches of these and
    of lse; and the window."""

    @property
    def threads(self) -> int:
        """Of a workgroup."""
        return self.config.threads

    @property
    def name(self) -> str:
        """Dtype, head, tile with its step and waves, then what it handles."""
        c = self.config
        tile = f"d{self.head_dim}_b{c.queries}x{c.keys}_k{c.key_step}_w{c.waves_m}x{c.waves_n}"
        flags = "_ragged" * self.ragged + "_mask" * self.masked + "_shared" * self.shared
        return f"{self.op}_{self.x}_{tile}{flags}"

    def text(self) -> str:
        """The translation unit."""
        c = self.config
        sizes = (c.queries, c.keys, c.key_step, self.head_dim, c.waves_m, c.waves_n)
        flags = ("true" if flag else "false" for flag in (self.ragged, self.masked))
        dtypes = CPP[self.x], CPP["fp32" if self.shared else self.x]
        values = ", ".join(map(str, (*dtypes, *sizes, *flags)))
        return f'// {self.name}\n#include "attention_backward.h"\n\nOPMUX_CK_ATTENTION_BACKWARD({values})\n'


@dataclass(frozen=True)
class OutputProduct:
    """An instance of the product of out with its gradient, by rows.

    Attributes:
        x: CK's name of the dtype of both.
        value_dim: elements of a head.
    """

    x: str
    value_dim: int

    op = "attention_backward"
    kernel = "output_product"
    signature = "p" * 3 + "i" * 9
    """out, its gradient, the product; rows; the strides of tokens, heads and batches of out and of its gradient, and of
    heads and batches of the product."""
    threads = rows = 64
    """Of a workgroup: a thread has a row."""

    @property
    def name(self) -> str:
        """Dtype and the elements of a head."""
        return f"{self.kernel}_{self.x}_d{self.value_dim}"

    def text(self) -> str:
        """The translation unit."""
        values = f"{CPP[self.x]}, {self.value_dim}"
        return f'// {self.name}\n#include "attention_backward.h"\n\nOPMUX_CK_OUTPUT_PRODUCT({values})\n'
