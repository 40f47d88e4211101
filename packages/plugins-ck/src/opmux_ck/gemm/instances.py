"""The instances of CK's universal GEMM, as translation units."""

from dataclasses import dataclass

from opmux_ck.dtypes import CPP
from opmux_ck.gemm.configs import BlockCodesConfig, CodesConfig, GemmConfig

SIGNATURE = "pppp" + "i" * 8
"""x, w, bias and the result; rows, n, k; the strides of the rows of x, w and the result; parts of k; rows of a part.
Eight integers, which are read by one load."""
SCALED_SIGNATURE = "ppppp" + "i" * 8
"""x, w, their scales and the result; rows, n, k; the strides of the rows of x, w and the result; and two zeros."""
BLOCK_SCALED_SIGNATURE = "ppppp" + "i" * 16
"""x, w, their scales and the result; rows, n, k; the strides of the rows of x, w and the result; the strides of the
scales of x, then of w; and six zeros."""
GROUPED_SIGNATURE = "ppppp" + "i" * 8
"""x, w, the result, offsets and sizes of groups; groups, rows that each has room for, n, k; the strides of rows of x
and w; whether there are sizes; and a zero."""
SCALED_GROUPED_SIGNATURE = "ppppppp" + "i" * 8
"""x, w, their scales, the result, offsets and sizes of groups; then as for groups without scales."""
BLOCK_SCALED_GROUPED_SIGNATURE = "ppppppp" + "i" * 16
"""The same; then the strides of the scales of x, and of w for a group, a block of rows and of k; and four zeros."""
SIGNATURES = {
    "grouped_linear": GROUPED_SIGNATURE,
    "scaled_grouped_linear": SCALED_GROUPED_SIGNATURE,
    "block_scaled_grouped_linear": BLOCK_SCALED_GROUPED_SIGNATURE,
    "linear": SIGNATURE,
    "scaled_linear": SCALED_SIGNATURE,
    "block_scaled_linear": BLOCK_SCALED_SIGNATURE,
}
BIAS_STORE = 4
"""The most elements of a store where a bias is added: what a thread has side by side in registers."""


@dataclass(frozen=True)
class Product:
    """An instance of the universal GEMM.

    Attributes:
        x: CK's name of the dtype of x and w.
        out: that of the result; float32 where parts of k are summed up later.
        config: the tile.
        loops: the number of steps whose loop it has, see `configs.loops`; 0 where one loop has any number.
        bias: whether a bias of the result's dtype is added.
    """

    x: str
    out: str
    config: GemmConfig
    loops: int
    bias: bool = False

    @property
    def op(self) -> str:
        """``scaled_linear`` for codes."""
        return self.config.kernel.removeprefix("block_")

    @property
    def part(self) -> str:
        """What the instance needs of CK."""
        return "linear with a bias" if self.bias else self.op

    @property
    def kernel(self) -> str:
        """The kernel's name, the same in every instance of a kind."""
        return self.config.kernel

    @property
    def signature(self) -> str:
        """Of the kernel."""
        return SIGNATURES[self.kernel]

    @property
    def threads(self) -> int:
        """Of a workgroup."""
        return self.config.threads

    @property
    def store(self) -> int:
        """Elements of a store."""
        if self.bias:
            return BIAS_STORE if self.config.store >= BIAS_STORE else 1
        return min(self.config.store, 4) if self.out == "fp32" else self.config.store

    @property
    def name(self) -> str:
        """Dtypes, tile, waves, matrix instruction, pipeline with its steps, store, then padding and bias."""
        c = self.config
        tile = f"b{c.m}x{c.n}x{c.k}_w{c.waves_m}x{c.waves_n}_x{c.mfma}x{c.mfma}x{c.mfma_k}"
        flags = "_padn" * c.pads_n + "_padk" * c.pads_k + "_bias" * self.bias
        loop = f"{c.pipeline}l{self.loops}_" if self.loops else ""
        return f"{self.kernel}_{self.x}_{self.out}_{tile}_{loop}s{self.store}{flags}"

    def text(self) -> str:
        """The translation unit."""
        c = self.config
        tile = (c.m, c.n, c.k, c.waves_m, c.waves_n, c.mfma, c.mfma_k)
        pads = ("true" if flag else "false" for flag in (c.pads_n, c.pads_k))
        loop: tuple[object, ...] = (c.stages, self.loops)
        more: tuple[str, ...] = ()
        if not isinstance(c, CodesConfig):
            loop = (f"opmux_ck::{c.pipeline.capitalize()}", *loop)
        if self.kernel == "linear":
            more = ("true" if self.bias else "false",)
        elif isinstance(c, BlockCodesConfig):
            loop = ()
        header = ("block_scaled_" if self.kernel == "block_scaled_linear" else self.op.removesuffix("linear")) + "gemm"
        values = ", ".join(map(str, (CPP[self.x], CPP[self.out], *tile, *loop, self.store, *pads, *more)))
        return f'// {self.name}\n#include "{header}.h"\n\nOPMUX_CK_{self.kernel.upper()}({values})\n'
