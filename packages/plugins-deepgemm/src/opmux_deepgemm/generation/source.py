"""The source of a kernel: constants, the files of `cuda`, and the multiplication of one width."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from opmux_deepgemm.configs import Config
from opmux_deepgemm.generation.instructions import multiply

FOLDER = Path(__file__).parents[1] / "cuda"
BYTES = {"bfloat16": 2, "float8_e4m3fn": 1, "float32": 4}


Layout = Literal["", "ragged", "masked"]
"""How groups of rows lie, or that there is one matrix w."""


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
        accumulate: whether it is added to the result, which is float32; w then has scales of 1x128 blocks.
    """

    dtype: str
    out: str
    n: int
    k: int
    bias: bool = False
    groups: Layout = ""
    accumulate: bool = False

    @property
    def scaled(self) -> bool:
        """Whether the operands are codes with scales, of 1x128 blocks of x and 128x128 blocks of w."""
        return self.dtype == "float8_e4m3fn"

    @property
    def out_bytes(self) -> int:
        """Bytes of an element of the result."""
        return BYTES[self.out]


def blocks_touched(block_n: int) -> int:
    """Of the blocks of 128 rows of w, how many a tile's rows may lie in."""
    begins = range(0, 128 * block_n, block_n)
    return max((begin + block_n - 1) // 128 - begin // 128 + 1 for begin in begins)


def constants(product: Product, config: Config) -> dict[str, int]:
    """The constants that the kernel's file reads."""
    found = {
        "N": product.n,
        "K": product.k,
        "OPERAND_BYTES": BYTES[product.dtype],
        "OUT_BYTES": product.out_bytes,
        "BIAS": int(product.bias),
        "SCALED": int(product.scaled),
        "W_BY_ROW": int(product.accumulate),
        "ACCUMULATE": int(product.accumulate),
        "W_SCALE_ROWS": -(-product.n // 128),
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "STAGES": config.stages,
        "CONSUMERS": config.consumers,
    }
    by_blocks = product.scaled and not product.accumulate
    if by_blocks and config.kernel == "large" and blocks_touched(config.block_n) > 2:
        raise ValueError(
            f"block_n = {config.block_n} expected one whose tiles touch two blocks of 128 rows at most, got "
            f"{blocks_touched(config.block_n)}"
        )
    if product.accumulate and (config.kernel != "large" or product.groups or product.bias or product.out != "float32"):
        raise ValueError("a product that is added expected the kernel 'large', float32, no bias and no groups")
    if product.groups and (config.kernel != "large" or product.bias):
        raise ValueError("groups expected the kernel 'large' and no bias")
    if config.kernel == "small":
        return found | {"SPLIT": config.cluster}
    return found | {
        "CLUSTER": config.cluster,
        "GROUP": config.group,
        "SLICE_WIDTH": config.slice_width(product.out_bytes),
        "W_SCALES": blocks_touched(config.block_n) if by_blocks else 1,
    }


def body(product: Product, config: Config) -> str:
    """Constants and the kernel, on top of the instructions and the function ``multiply``."""
    lines = [f"constexpr int {name} = {value};" for name, value in constants(product, config).items()]
    if product.groups:
        lines += ["constexpr int RAGGED = 1, MASKED = 2;", f"#define GROUPS {product.groups.upper()}"]
    return "\n".join(["", *lines, "", read(f"{config.kernel}.cuh")])


def text(product: Product, config: Config) -> str:
    """The whole source, which declares one kernel, ``product``."""
    columns = config.block_m if config.kernel == "small" else config.block_n
    return read("instructions.cuh") + read("layouts.cuh") + multiply(product.dtype, columns) + body(product, config)


def name(product: Product, config: Config) -> str:
    """What messages and the cache call a kernel."""
    kind = {"bfloat16": "bf16", "float8_e4m3fn": "fp8"}[product.dtype]
    groups = f"_{product.groups}" if product.groups else "_added" if product.accumulate else ""
    tile = f"{config.kernel}_{config.block_m}x{config.block_n}_{config.stages}_{config.consumers}_{config.cluster}"
    return f"{kind}_{product.out}_{product.n}x{product.k}{'_bias' * product.bias}{groups}_{tile}"


@functools.cache
def read(file: str) -> str:
    """A file of `cuda`."""
    return (FOLDER / file).read_text(encoding="utf-8")
