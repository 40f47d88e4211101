"""The instances of CK's norms, as translation units."""

from dataclasses import dataclass

from opmux_ck.dtypes import CPP
from opmux_ck.norms.configs import NormConfig

TEMPLATES = {
    "rms_norm": ("rms_norm.h", "ppp"),
    "add_rms_norm": ("rms_norm.h", "ppppp"),
    "rms_norm_quantize": ("norm_quantize.h", "pppp"),
    "add_rms_norm_quantize": ("norm_quantize.h", "pppppp"),
    "layer_norm": ("layer_norm.h", "pppp"),
    "add_layer_norm": ("layer_norm.h", "pppppp"),
}
"""The header of a kernel's template, and the kernel's tensors."""
STRIDES = 5
SCALARS = "f" + "i" * (2 + STRIDES)
"""The other arguments: eps; rows and columns; the strides of the matrices' rows, and zeros in place of those that there
are not. Eight of them, because clang 22 reads seven by one load of eight, past the end of the arguments."""


@dataclass(frozen=True)
class Norm:
    """An instance of a norm.

    Attributes:
        op: the op, and the name of the kernel.
        x: CK's name of the dtype of x and of the results.
        weight: that of the weight and the bias.
        config: the tile.
        code: that of the codes, where the result is quantised.
        block: columns that share a scale then; 0 is all of a row.
    """

    op: str
    x: str
    weight: str
    config: NormConfig
    code: str = ""
    block: int = 0

    @property
    def kernel(self) -> str:
        """The kernel's name, the same in every instance of an op."""
        return self.op

    @property
    def signature(self) -> str:
        """Of the kernel."""
        return TEMPLATES[self.op][1] + SCALARS

    @property
    def threads(self) -> int:
        """Of a workgroup."""
        return self.config.rows * self.config.threads

    @property
    def name(self) -> str:
        """Dtypes, codes and their block, tile, threads, vector, then ``pad`` and ``two`` for padding and two passes."""
        c = self.config
        tile = f"b{c.rows}x{c.columns}_t{c.rows}x{c.threads}_v{c.vector}"
        codes = f"_{self.code}_{self.block or 'row'}" if self.code else ""
        return f"{self.op}_{self.x}_{self.weight}{codes}_{tile}{'_pad' * c.pads}{'_two' * c.two_passes}"

    def text(self) -> str:
        """The translation unit."""
        c = self.config
        numbers = f"{c.rows}, {c.threads}, {c.repeats}, {c.vector}"
        flags = f"{_cpp(c.pads)}, {_cpp(c.two_passes)}"
        codes = f", {CPP[self.code]}, {self.block}" if self.code else ""
        return (
            f'// {self.name}\n#include "{TEMPLATES[self.op][0]}"\n\n'
            f"OPMUX_CK_{self.op.upper()}({CPP[self.x]}, {CPP[self.weight]}{codes}, {numbers}, {flags})\n"
        )


def _cpp(flag: bool) -> str:
    return "true" if flag else "false"
