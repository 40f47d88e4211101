"""What is computed of rows: the parts that the ops are put together from."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from opmux_asm.kernels.numbers import BYTES
from opmux_asm.kernels.rows import ACCESS, Tile

TILES = ((1, 1), (4, 1), (4, 2), (4, 4), (16, 2), (16, 4))
"""Waves of a workgroup, which has a row, and accesses of 16 bytes of a thread."""
FLOATS = ("bf16", "f16", "f32")
MIXED = (("bf16", "bf16"), ("f16", "f16"), ("f32", "f32"), ("bf16", "f32"), ("f16", "f32"))
"""Dtypes of x and of a norm's weight."""
CODES = ("fp8", "int8")
"""What quantised results are: fp8 is e4m3 in the arch's flavour, FNUZ on gfx942, OCP on gfx950."""
BLOCKS = ("token", "block")
"""What shares a scale: a row, or 128 columns of one."""


@dataclass(frozen=True)
class Recipe:
    """A kernel of rows, from left to right: x, plus a residual; or gated; normed; stored, or quantised.

    Attributes:
        x: dtype of x, of a residual and of results that are not quantised.
        weight: dtype of the norm's weight; empty without one.
        adds: whether a residual is added first, and the sum, rounded, stored too.
        gates: whether a row is two: ``silu`` of the first, times the second.
        norm: which norm; empty for none.
        biased: whether the norm has a bias, in weight's dtype.
        codes: what results are quantised to; empty for none.
        block: what shares a scale.
    """

    x: str
    weight: str = ""
    adds: bool = False
    gates: bool = False
    norm: Literal["", "rms", "layer"] = ""
    biased: bool = False
    codes: str = ""
    block: str = ""

    @property
    def suffix(self) -> str:
        """What a kernel's name says of it."""
        parts = [self.x, self.weight, "bias" if self.biased else "", self.codes, self.block]
        return "_".join(filter(None, parts))

    def tile(self, waves: int, chunks: int) -> Tile:
        """The tile of a kernel."""
        return Tile(waves, chunks, ACCESS // BYTES[self.x])


def recipes(family: str) -> Iterator[Recipe]:
    """The recipes of an op."""
    if family == "rms_norm":
        yield from (Recipe(x, weight, norm="rms") for x, weight in MIXED)
    elif family == "add_rms_norm":
        yield from (Recipe(x, weight, adds=True, norm="rms") for x, weight in MIXED)
    elif family == "layer_norm":
        yield from (Recipe(x, w, norm="layer", biased=biased) for x, w in MIXED for biased in (False, True))
    elif family == "silu_and_mul":
        yield from (Recipe(x, gates=True) for x in FLOATS)
    elif family == "quantize":
        yield from (Recipe(x, codes=codes, block=block) for x in FLOATS for codes in CODES for block in BLOCKS)
    else:
        yield from (
            Recipe(
                x, x if "norm" in family else "", family.startswith("add_"), "silu" in family,
                "rms" if "norm" in family else "", codes=codes, block=block,
            )
            for x in FLOATS for codes in CODES for block in BLOCKS
        )  # fmt: skip


FAMILIES = (
    "rms_norm", "add_rms_norm", "layer_norm", "silu_and_mul", "quantize", "rms_norm_quantize",
    "add_rms_norm_quantize", "silu_and_mul_quantize",
)  # fmt: skip
"""The ops that are kernels of rows."""


def name_of(family: str, recipe: Recipe, waves: int, chunks: int) -> str:
    """A kernel's name."""
    return f"{family}_{recipe.suffix}_w{waves}c{chunks}"
