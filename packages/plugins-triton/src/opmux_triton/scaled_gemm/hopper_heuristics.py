"""Which tile of the Gluon kernel a scaled product gets on sm_90: the cost model of `opmux_triton.gemm.hopper_model`.

The constants below began as estimates, from what the matrix units and the caches can do and from the 16-bit kernel's
costs. ``benchmarks/fit_scaled.py`` changed them by 363 times of 40 products on an H200 (2026-11-23 and 2026-11-27). Of
products that a fit has not seen, the choice with scales of blocks takes 1.017 times as long as the fastest tile, and
1.027 by the estimates (geometric means). Loads no Triton.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from opmux.plugin import Arch, parse_arch
from opmux_triton.archs import shared_memory
from opmux_triton.gemm.hopper_model import Choice, Cut, Work, cuts_of, predict, work_of
from opmux_triton.gemm.hopper_tiles import Cost, Tile
from opmux_triton.scaled_gemm.configs import ScaledConfig
from opmux_triton.scaled_gemm.heuristics import tiles as portable
from opmux_triton.scaled_gemm.hopper_configs import BLOCK_K, HopperScaledConfig

_ARCH = parse_arch("sm_90")
_RESERVED = 2048
"""Bytes of shared memory that barriers and the compiler's own use take."""
_MOST_STAGES = 16
_RESULT_BYTES = 4
"""Of a value of the largest result."""
GROUP = 8
FEW = 16
"""Rows up to which the portable kernel takes products with scales of blocks."""
TILES = (
    Tile(64, 16, BLOCK_K, 1, False, Cost(8.26, 0.0481, 0.0117, 0.251, 1.89, 0.099, 1.325)),
    Tile(64, 32, BLOCK_K, 1, False, Cost(8.26, 0.0766, 0.0155, 0.251, 2.36, 0.099, 1.325)),
    Tile(64, 64, BLOCK_K, 1, False, Cost(8.26, 0.0807, 0.0233, 0.251, 2.36, 0.297, 1.325)),
    Tile(64, 128, BLOCK_K, 1, False, Cost(8.26, 0.0901, 0.0389, 0.302, 2.84, 0.396, 1.325)),
    Tile(128, 32, BLOCK_K, 2, False, Cost(8.26, 0.0717, 0.0233, 0.251, 2.36, 0.297, 1.325)),
    Tile(128, 64, BLOCK_K, 2, False, Cost(8.26, 0.0984, 0.0311, 0.302, 2.84, 0.396, 1.325)),
    Tile(128, 128, BLOCK_K, 2, False, Cost(8.26, 0.1379, 0.0544, 0.603, 3.78, 0.495, 1.276)),
    Tile(192, 128, BLOCK_K, 3, False, Cost(8.81, 0.2073, 0.0622, 0.804, 4.73, 0.495, 1.257)),
)


class Extra(NamedTuple):
    """How much longer blocks take that are scaled one by one.

    Attributes:
        blockwise: with scales for each block of k.
        narrow: as much again where columns have scales of their own, of a tile of up to 32 columns.
        wide: of a wider tile.
    """

    blockwise: float
    narrow: float
    wide: float


EXTRA = Extra(1.37, 1.1, 1.35)


class Sizes(NamedTuple):
    """A product.

    Attributes:
        m, n, k: its sizes.
        blockwise: whether there are scales for each block of k.
        by_weight_row: whether each row of the weight has scales of its own.
        added: whether it is added to what is there: each tile is then computed whole.
    """

    m: int
    n: int
    k: int
    blockwise: bool
    by_weight_row: bool
    added: bool = False

    def by_column(self, swap: bool) -> bool:
        """Whether the columns of a tile have scales of their own in each block of k."""
        return self.blockwise and (swap or self.by_weight_row)


def scaled_linear(arch: Arch, features: Mapping[str, Any]) -> HopperScaledConfig:
    """The tile with the least predicted time."""
    found = sizes(features)
    return config(best(found), found)


def why_not_scaled_linear(features: Mapping[str, Any]) -> str | None:
    """Why the Gluon kernel does not take a call of `scaled_linear`, or None.

    At 8 rows of Qwen3 4B's and Llama 8B's layers either kernel is within 4 % of the other by itself. But the Gluon
    kernel's shared memory leaves no room for the programs of the next kernel to start in: in a chain of dependent
    launches a layer's products took 63 us by it, and 58 where the portable kernel had three of the four (H200).
    """
    product = sizes(features)
    if product.blockwise and product.m <= FEW:
        return f"up to {FEW} rows with scales of blocks, the portable kernel was measured to be as fast or faster"
    return None


def sizes(features: Mapping[str, Any]) -> Sizes:
    """The product of a call; its m are the rows of all matrices together."""
    m, n = max(1, features["bucket(m, 8)"]) << features.get("bucket(batch)", 0), features["n"]
    return Sizes(m, n, features["k"], features["k_blocks"] > 1, features["w_rows"] == n)


def scaled_linear_accumulate(arch: Arch, features: Mapping[str, Any]) -> HopperScaledConfig:
    """The same for a product that is added."""
    found = sizes(features)._replace(added=True)
    return config(best(found), found)


@lru_cache(maxsize=1024)
def best(product: Sizes) -> Choice:
    """The choice with the least predicted time; of equals the smallest tile."""
    return min(choices(product))


def choices(product: Sizes) -> Iterator[Choice]:
    """Every tile that is not much larger than the result, as it is and swapped, whole and cut along k."""
    m, n, k, *_ = product
    for tile in TILES:
        for swap in (True, False):
            rows, columns = (n, m) if swap else (m, n)
            if tile.block_m > max(2 * rows - 1, 64) or tile.block_n > max(2 * columns - 1, 16):
                continue
            by_column = product.by_column(swap)
            # More values for each column, or addresses across rows, do not fit its registers.
            if tile.warpgroups == 3 and (by_column or (product.added and swap)):
                continue
            for cut in cuts_of(tile, rows, columns, k):
                if product.added and cut != "none":
                    continue
                yield Choice(predict(tile, work(product, tile, cut, swap)), tile, cut, swap)


def work(product: Sizes, tile: Tile, cut: Cut, swap: bool, extra: Extra = EXTRA) -> Work:
    """What a product asks of a tile; blocks that take longer count for more than one."""
    m, n, k, *_ = product
    rows, columns = (n, m) if swap else (m, n)
    found = work_of(tile, cut, rows, columns, k)
    longer = extra.blockwise if product.blockwise else 1.0
    if product.by_column(swap):
        longer *= extra.wide if tile.block_n >= 64 else extra.narrow
    return found._replace(blocks=found.blocks * longer, megabytes=1e-6 * (m * k + n * k + 2 * m * n))


def config(choice: Choice, product: Sizes) -> HopperScaledConfig:
    """The launch parameters of a choice, with as many stages as shared memory holds."""
    _, tile, cut, swap = choice
    m, n, k, *_ = product
    parts = 2 if tile.block_n >= 64 else 1
    few = swap and -(-m // tile.block_n) <= GROUP
    return HopperScaledConfig(
        tile.block_m, tile.block_n, stages_of(tile.block_m, tile.block_n, parts), tile.warpgroups, otherwise(m, n, k),
        parts=parts, group=1 if few else GROUP, cut=cut, swap=swap,
    )  # fmt: skip


def otherwise(m: int, n: int, k: int) -> ScaledConfig:
    """The portable kernel's parameters."""
    return portable(_ARCH, 1 << (max(m, 1) - 1).bit_length(), n, k, native=True)


def stages_of(block_m: int, block_n: int, parts: int) -> int:
    """How many blocks of both operands shared memory holds beside the slots that results are stored through."""
    slots = _RESULT_BYTES * block_m * block_n // parts
    return min(_MOST_STAGES, (shared_memory("sm_90") - _RESERVED - slots) // ((block_m + block_n) * BLOCK_K))
