"""The instances of CK's rmsnorm2d, as translation units."""

from dataclasses import dataclass

from opmux_ck.norms.configs import NormConfig

CPP = {"bf16": "ck_tile::bf16_t", "fp16": "ck_tile::fp16_t", "fp32": "float"}
"""CK's short names of dtypes, and its types."""


@dataclass(frozen=True)
class RmsNorm:
    """An instance of rmsnorm2d that neither adds nor quantises.

    Attributes:
        x: CK's name of the dtype of x and of the result.
        weight: that of the weight.
        config: the tile.
    """

    x: str
    weight: str
    config: NormConfig

    op = "rms_norm"
    kernel = "rms_norm"
    signature = "pppfiiii"
    """x, weight, y; eps; rows and columns; the strides of x's and y's rows, in elements."""

    @property
    def threads(self) -> int:
        """Of a workgroup."""
        return self.config.rows * self.config.threads

    @property
    def name(self) -> str:
        """Dtypes, tile, threads, vector; ``pad`` and ``two`` as CK's names have them."""
        c = self.config
        tile = f"b{c.rows}x{c.columns}_t{c.rows}x{c.threads}_v{c.vector}"
        return f"rms_norm_{self.x}_{self.weight}_{tile}{'_pad' * c.pads}{'_two' * c.two_passes}"

    def text(self) -> str:
        """The translation unit."""
        c = self.config
        numbers = f"{c.rows}, {c.threads}, {c.repeats}, {c.vector}"
        flags = f"{_cpp(c.pads)}, {_cpp(c.two_passes)}"
        return (
            f'// {self.name}\n#include "rms_norm.h"\n\n'
            f"OPMUX_CK_RMS_NORM({CPP[self.x]}, {CPP[self.weight]}, {numbers}, {flags})\n"
        )


def _cpp(flag: bool) -> str:
    return "true" if flag else "false"
