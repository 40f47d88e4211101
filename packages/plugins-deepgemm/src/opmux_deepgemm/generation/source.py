"""The source of a kernel: constants, the files of `cuda`, and the multiplication of one width."""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from opmux_deepgemm.configs import MOST_VALUES, Config
from opmux_deepgemm.generation.instructions import multiply

FOLDER = Path(__file__).parents[1] / "cuda"
PARTS = (
    "LAST_TILE_MOVED", "GROUPS_X_ACROSS", "GROUPS_W_ACROSS", "TURNED_OPERANDS", "SCALES_COPIED", "SCALES_LOADED"
)  # fmt: skip
"""Parts of the files between ``#ifdef`` and ``#endif`` which are written for some products alone. The sources of other
kernels have no trace of them, so that they stay as they were when they ran on a GPU."""
BYTES = {"bfloat16": 2, "float8_e4m3fn": 1, "float32": 4}


Layout = Literal["", "ragged", "masked"]
"""How groups of rows lie, or that there is one matrix w."""
Scales = Literal["", "rows", "columns"]
"""What is next to each other of the scales of x that the copy engine brings; empty where threads load them."""


@dataclass(frozen=True)
class Product:
    """What a kernel computes; everything but the number of rows is a constant of its source.

    Attributes:
        dtype: of x and w: ``bfloat16`` or ``float8_e4m3fn``.
        out: the result's dtype: ``bfloat16`` or ``float32``.
        n: rows of w.
        k: columns of x and w.
        bias: whether a bias in bfloat16 is added.
        groups: where each group of rows has a w of its own, how they lie: ``ragged``, one after the other, or
            ``masked``, each with room for as many; empty where there is one w.
        accumulate: whether it is added to the result, which is float32. Without groups, w then has scales of 1x128
            blocks. With ragged groups it is the gradient of weights, of n rows and k columns for each group: the rows
            of a group are summed.
        x_across: whether x, of 16 bits, lies across k: its rows are next to each other, of masked groups each one's.
        w_across: whether w does, or the w of each group.
        dy_turned: of a gradient in bfloat16, whether the rows of dy are next to each other, instead of its columns.
        x_turned: the same of x.
        x_scales: how the scales of x lie which the copy engine brings: those of a row of x next to each other,
            ``rows``, or those of a block of k, ``columns``; empty where threads load them, however they lie.
        w_together: whether the scales of w of four blocks of k can then be loaded at once.
        w_scales: of a product of codes that is added, how the scales of w lie, which the copy engine brings with those
            of x; empty where warps bring them, however they lie.
    """

    dtype: str
    out: str
    n: int
    k: int
    bias: bool = False
    groups: Layout = ""
    accumulate: bool = False
    x_across: bool = False
    w_across: bool = False
    dy_turned: bool = False
    x_turned: bool = False
    x_scales: Scales = ""
    w_together: bool = False
    w_scales: Scales = ""

    @property
    def scaled(self) -> bool:
        """Whether the operands are codes with scales, of 1x128 blocks of x and 128x128 blocks of w."""
        return self.dtype == "float8_e4m3fn"

    @property
    def gradient(self) -> bool:
        """Whether the rows of each group are summed, to the gradient of its weights."""
        return self.accumulate and bool(self.groups)

    @property
    def turned(self) -> bool:
        """Whether rows of an operand are next to each other, of a gradient."""
        return self.dy_turned or self.x_turned

    @property
    def groups_across(self) -> bool:
        """Whether the x or the w of groups lies across k."""
        return bool(self.groups) and (self.x_across or self.w_across)

    @property
    def moves(self) -> bool:
        """Whether the last tile of the kernel for many rows begins so that it ends with the last row of x."""
        return not (self.groups or self.accumulate or self.x_across or self.x_scales)

    @property
    def out_bytes(self) -> int:
        """Bytes of an element of the result."""
        return BYTES[self.out]


def blocks_touched(block_n: int) -> int:
    """Of the blocks of 128 rows of w, how many a tile's rows may lie in."""
    begins = range(0, 128 * block_n, block_n)
    return max((begin + block_n - 1) // 128 - begin // 128 + 1 for begin in begins)


def constants(product: Product, config: Config) -> dict[str, int]:
    """The constants that the kernel's file reads.

    Raises:
        ValueError: where the product cannot have the config.
    """
    if config.staged and product.out_bytes != 2:
        raise ValueError(f"staged expected a result of 2 bytes, got {product.out}; take a config without it")
    found = {
        "N": product.n,
        "K": product.k,
        "OPERAND_BYTES": BYTES[product.dtype],
        "OUT_BYTES": product.out_bytes,
        "BIAS": int(product.bias),
        "SCALED": int(product.scaled),
        "W_BY_ROW": int(product.accumulate and product.scaled),
        "ACCUMULATE": int(product.accumulate),
        "W_SCALE_ROWS": -(-product.n // 128),
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "STAGES": config.stages,
        "CONSUMERS": config.consumers,
    }
    if config.copied_scales and (not product.scaled or product.gradient):
        raise ValueError("copied_scales expected a product of codes, which is no gradient of weights")
    if product.x_scales and not config.copied_scales:
        raise ValueError(f"x_scales expected a config with copied_scales, got {product.x_scales!r} without")
    if config.copied_scales and config.overlaps and not product.accumulate:
        raise ValueError(
            "copied_scales of a product that is not added expected pieces that do not overlap, got "
            f"{config.block_m}x{config.block_n} in pieces = {config.pieces}; take other pieces or a config without"
        )
    if bool(product.w_scales) != (bool(product.x_scales) and product.accumulate):
        raise ValueError(
            f"w_scales expected x_scales of a product that is added, and these expect it, got {product.w_scales!r} and "
            f"{product.x_scales!r}"
        )
    if product.gradient:
        return found | _of_gradient(product, config)
    by_blocks = product.scaled and not product.accumulate
    if by_blocks and config.kernel == "large" and blocks_touched(config.block_n) > 2:
        raise ValueError(
            f"block_n = {config.block_n} expected one whose tiles touch two blocks of 128 rows at most, got "
            f"{blocks_touched(config.block_n)}"
        )
    if product.turned:
        raise ValueError("dy_turned and x_turned expected a gradient of weights")
    if product.accumulate and (config.kernel != "large" or product.groups or product.bias or product.out != "float32"):
        raise ValueError("a product that is added expected the kernel 'large', float32, no bias and no groups")
    if product.groups and (config.kernel != "large" or product.bias):
        raise ValueError("groups expected the kernel 'large' and no bias")
    if product.x_across or product.w_across:
        _check_across(product, config)
    if config.kernel == "small":
        return found | {"SPLIT": config.cluster}
    if product.w_scales:
        return found | _of_added(product, config)
    if product.x_scales:
        found |= {"X_IN_ROWS": int(product.x_scales == "rows"), "W_TOGETHER": int(product.w_together)}
    return found | {
        "CLUSTER": config.cluster,
        "GROUP": config.group,
        "SLICE_WIDTH": config.slice_width(product.out_bytes),
        "X_ACROSS": int(product.x_across),
        "W_ACROSS": int(product.w_across),
        "ALTERNATE": config.alternate if product.scaled else 0,
        "PIECES": config.pieces if product.scaled else 0,
        "OVERLAP": int(config.overlaps),
        "SHARE_X": int(config.share_x),
        "STAGED": int(config.staged),
        "W_SCALES": blocks_touched(config.block_n) if by_blocks else 1,
    }


def _of_gradient(product: Product, config: Config) -> dict[str, int]:
    """Further constants of a gradient of weights."""
    if (product.out, product.groups) != ("float32", "ragged"):
        raise ValueError("the gradient of weights expected ragged groups, added to float32")
    if product.x_across or product.w_across or (product.scaled and product.turned):
        raise ValueError(
            "the gradient of weights expected operands whose rows are next to each other as dy_turned or x_turned, in "
            "bfloat16"
        )
    if product.scaled:
        fits = config.block_n % 32 == 0 and 2 * config.values <= MOST_VALUES
        if config.kernel != "large" or config.pieces or config.share_x or not fits:
            raise ValueError(
                "the gradient of weights from codes expected the kernel 'large' without pieces or shared rows of x, "
                f"block_n a multiple of 32, and threads of {MOST_VALUES // 2} sums at most, got {config.values}"
            )
        return {"CLUSTER": config.cluster, "GROUP": config.group, "ALTERNATE": config.alternate}
    if config.kernel != "large" or config.cluster != 1 or config.block_n % 64:
        raise ValueError(
            "the gradient of weights expected the kernel 'large', no clusters, and block_n a multiple of 64"
        )
    return {"DY_TURNED": int(product.dy_turned), "X_TURNED": int(product.x_turned)} if product.turned else {}


def _of_added(product: Product, config: Config) -> dict[str, int]:
    """Further constants of a product that is added, whose scales the copy engine brings."""
    if config.cluster != 1:
        raise ValueError(
            f"copied_scales of a product that is added expected no clusters, got {config.cluster}; take a config of one"
        )
    return {
        "CLUSTER": 1,
        "GROUP": config.group,
        "SLICE_WIDTH": config.slice_width(product.out_bytes),
        "PIECES": config.pieces,
        "OVERLAP": int(config.overlaps),
        "X_IN_ROWS": int(product.x_scales == "rows"),
        "W_IN_ROWS": int(product.w_scales == "rows"),
    }


def _check_across(product: Product, config: Config) -> None:
    if product.dtype != "bfloat16":
        raise ValueError("operands that lie across k expected bfloat16")
    if product.groups and product.x_across and config.staged:
        raise ValueError("x of groups that lies across k expected no staged results")
    if config.kernel != "large" or config.share_x or (product.w_across and config.block_n // config.cluster % 64):
        raise ValueError(
            "operands that lie across k expected the kernel 'large' without share_x, and where w does block_n / "
            f"cluster a multiple of 64, got {config.kernel!r}, {config.block_n} / {config.cluster}"
        )


def body(product: Product, config: Config) -> str:
    """Constants and the kernel, on top of the instructions and the function ``multiply``."""
    file = "scaled_" * product.scaled + "gradients" if product.gradient else config.kernel
    file = "added" if product.w_scales else file
    lines = [f"constexpr int {name} = {value};" for name, value in constants(product, config).items()]
    if product.groups and not product.gradient:
        lines += ["constexpr int RAGGED = 1, MASKED = 2;", f"#define GROUPS {product.groups.upper()}"]
    of_groups, copied = bool(product.groups), bool(product.x_scales)
    wanted = (
        product.moves,
        of_groups and product.x_across,
        of_groups and product.w_across,
        product.turned,
        copied,
        not copied,
    )
    names = [name for name, taken in zip(PARTS, wanted, strict=True) if taken]
    return "\n".join(["", *lines, "", with_parts(read(f"{file}.cuh"), names)])


def with_parts(text: str, names: Sequence[str]) -> str:
    """The text of a file with the parts of these names, and without the other `PARTS`."""
    for name in PARTS:
        part = re.compile(rf"^#ifdef {name}\n(.*?)(?:^#else +// {name}\n(.*?))?^#endif  // {name}\n", re.M | re.S)
        text = part.sub(r"\1" if name in names else r"\2", text)
    return text


def text(product: Product, config: Config) -> str:
    """The whole source, which declares one kernel, ``product``."""
    columns = config.block_m if config.kernel == "small" else config.block_n
    widths = {columns, columns // max(config.pieces, 1)}
    # In a gradient rows are summed, so that the matrix unit transposes what is not turned.
    across = product.x_across, product.w_across
    if product.gradient:
        across = not product.dy_turned, not product.x_turned
    return "".join(
        [
            read("instructions.cuh"),
            read("matrix_copies.cuh") if product.groups_across or (product.x_scales and product.groups) else "",
            read("scale_copies.cuh") if product.x_scales else "",
            read("row_scales.cuh") if product.w_scales else "",
            read("layouts.cuh"),
            *(multiply(product.dtype, width, *across) for width in sorted(widths)),
            body(product, config),
        ]
    )


def name(product: Product, config: Config) -> str:
    """What messages and the cache call a kernel."""
    kind = {"bfloat16": "bf16", "float8_e4m3fn": "fp8"}[product.dtype]
    groups = f"_{product.groups}" * bool(product.groups) + "_added" * product.accumulate
    groups += "_x_across" * product.x_across + "_w_across" * product.w_across
    groups += f"_scales_in_{product.x_scales}" * bool(product.x_scales) + "_together" * product.w_together
    groups += f"_and_{product.w_scales}" * bool(product.w_scales)
    groups += "_dy_turned" * product.dy_turned + "_x_turned" * product.x_turned
    tile = f"{config.kernel}_{config.block_m}x{config.block_n}_{config.stages}_{config.consumers}_{config.cluster}"
    if config.share_x:
        tile += "_share_x"
    if config.staged:
        tile += "_staged"
    if config.alternate:
        tile += f"_{config.alternate}"
    if config.pieces:
        tile += f"_in_{config.pieces}"
    return f"{kind}_{product.out}_{product.n}x{product.k}{'_bias' * product.bias}{groups}_{tile}"


@functools.cache
def read(file: str) -> str:
    """A file of `cuda`."""
    return (FOLDER / file).read_text(encoding="utf-8")
