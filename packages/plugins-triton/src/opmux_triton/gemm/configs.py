"""The launch parameters of a linear layer as configs. Which an arch gets is in `heuristics` and `hopper_heuristics`.

In all of them m and n are those of the product as it is launched, after a swap. Loads no Triton.
"""

from dataclasses import dataclass, replace
from typing import Literal

from opmux_triton.compiler_options import CompilerOptions
from opmux_triton.config_checks import require_at_least, require_parts, require_powers_of_two


@dataclass(frozen=True)
class VectorConfig:
    """One row by every row of the weight, without matrix instructions.

    Attributes:
        rows: rows of the weight that a program reads.
        block_k: columns at a time.
        num_warps: warps of a program.
        otherwise: the product by tiles, where columns of the weight are apart; None for this kernel there too.
    """

    rows: int
    block_k: int
    num_warps: int
    otherwise: "TilesConfig | None" = None

    def __post_init__(self) -> None:
        require_powers_of_two(self, "rows", "block_k", "num_warps")


@dataclass(frozen=True)
class VectorsConfig:
    """A few rows by every row of the weight, without matrix instructions.

    Attributes:
        rows: rows of the weight that a program reads.
        block_k: columns of a block.
        blocks: blocks of each of these rows that are under way at a time.
        num_warps: warps of a program.
        otherwise: the product by tiles, where columns are apart or rows of x have two strides.
    """

    rows: int
    block_k: int
    blocks: int
    num_warps: int
    otherwise: "TilesConfig"

    def __post_init__(self) -> None:
        require_powers_of_two(self, "block_k", "num_warps")
        require_at_least(1, self, "rows", "blocks")


@dataclass(frozen=True)
class ColumnsConfig:
    """Sums of columns, of parts of the rows first.

    Attributes:
        rows: rows at a time.
        block: columns of a program.
        waves: programs for each multiprocessor that the parts of the rows are to give.
        num_warps: warps of a program.
    """

    rows: int
    block: int
    waves: int
    num_warps: int

    def __post_init__(self) -> None:
        require_powers_of_two(self, "rows", "block", "num_warps")
        require_at_least(1, self, "waves")


@dataclass(frozen=True)
class TileChange:
    """What changes in a `TilesConfig`; None for what does not."""

    block_n: int | None = None
    block_k: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None


@dataclass(frozen=True, kw_only=True)
class TilesConfig(CompilerOptions):
    """A product by tiles, with the portable kernels.

    Attributes:
        kind: ``tiles``, or ``shares``: equal shares of the blocks of k, summed by a second kernel: for few tiles.
        block_m, block_n, block_k: the tile, and the columns of the operands at a time.
        swap: whether the transposed product is computed, so that a small m is the n of the matrix instruction.
        group: rows of tiles that are walked together.
        tma: whether operands come by descriptors where they can; else by pointers, in the same tiles.
        store: how tiles are stored where operands come by descriptors.
        flatten: whether the loops over tiles and over k are one.
        parts: in how many parts of its columns a tile is stored.
        cut_rest: whether tiles that do not fill a round of all programs are cut along k.
        per_unit: programs on a multiprocessor, of kernels that stay there.
        xcds: dies among which programs are dealt out.
        sum_rows: rows of a tile that one program of the second kernel sums up.
        otherwise: what changes where descriptors cannot be used, though ``tma`` is set.
        uneven: what changes for pointers where k is no multiple of ``block_k`` or rows have two strides: addresses and
            masks take registers then.
    """

    kind: Literal["tiles", "shares"] = "tiles"
    block_m: int
    block_n: int
    block_k: int
    swap: bool = False
    group: int = 8
    tma: bool = False
    store: Literal["pointers", "descriptor"] = "pointers"
    flatten: bool = False
    parts: int = 1
    cut_rest: bool = False
    per_unit: int = 1
    xcds: int = 1
    sum_rows: int = 16
    otherwise: TileChange = TileChange()
    uneven: TileChange = TileChange()

    def __post_init__(self) -> None:
        super().__post_init__()
        require_powers_of_two(self, "block_m", "block_n", "block_k", "sum_rows", "parts")
        require_at_least(16, self, "block_m", "block_n", "block_k")
        require_at_least(1, self, "group", "per_unit", "xcds")
        require_parts(self, "block_m", "sum_rows")

    def changed(self, change: TileChange) -> "TilesConfig":
        """With what a change sets."""
        values = {name: value for name, value in vars(change).items() if value is not None}
        return replace(self, **values) if values else self


@dataclass(frozen=True)
class HopperConfig:
    """A product by the Gluon kernel of sm_90: warps that load, warpgroups that multiply.

    Attributes:
        block_m: rows of a tile: of all warpgroups together, or of one where they alternate; 64 or 128 of each.
        block_n: columns of a tile: a power of two, or two of them in one: 96 = 64 + 32.
        block_k: columns of a block of the operands.
        stages: how many such blocks the ring holds.
        warpgroups: how many multiply.
        otherwise: the portable kernels' parameters where descriptors cannot be used.
        alternate: whether warpgroups have whole tiles in turn, so that one stores while the other multiplies.
        parts: in how many parts of its columns a tile is stored, a multiple of ``slots``.
        slots: buffers of a warpgroup for them.
        group: rows of tiles that are walked together.
        cut: which tiles are cut along k, with a second kernel that sums them up: ``none``, the ``rest`` that does not
            fill a round of all programs, ``all``, where each program then has one part at most.
        spin: whether programs with other parts of the large operand begin elsewhere in k.
        swap: whether the transposed product is computed.
        sum_rows: rows of a tile that one program of the second kernel sums up.
    """

    block_m: int
    block_n: int
    block_k: int
    stages: int
    warpgroups: int
    otherwise: TilesConfig
    alternate: bool = False
    parts: int = 2
    slots: int = 2
    group: int = 8
    cut: Literal["none", "rest", "all"] = "none"
    spin: bool = False
    swap: bool = False
    sum_rows: int = 16

    def __post_init__(self) -> None:
        require_at_least(1, self, "block_m", "block_n", "block_k", "stages", "group", "parts", "slots", "sum_rows")
        require_parts(self, "block_m", "sum_rows")
        if self.warpgroups not in (1, 2, 3):
            raise ValueError(f"warpgroups expected 1, 2 or 3, got {self.warpgroups}")
        if self.parts % self.slots:
            raise ValueError(f"parts expected a multiple of slots = {self.slots}, got {self.parts}")


@dataclass(frozen=True)
class LinearConfig:
    """`linear`: one of the three.

    Attributes:
        vector: for one row.
        tiles: for more.
        vectors: for a few.
    """

    vector: VectorConfig | None = None
    tiles: TilesConfig | None = None
    vectors: VectorsConfig | None = None

    def __post_init__(self) -> None:
        if sum(kind is not None for kind in (self.vector, self.tiles, self.vectors)) != 1:
            raise ValueError("expected one of vector, tiles and vectors")


@dataclass(frozen=True)
class LinearBackwardConfig:
    """`linear_backward`.

    Attributes:
        grad_x: of the product that gives grad_x, (tokens, k) over n.
        grad_w: of the one that gives grad_w, (n, k) over tokens.
        grad_bias: of the sums that give grad_bias.
    """

    grad_x: TilesConfig
    grad_w: TilesConfig
    grad_bias: ColumnsConfig


@dataclass(frozen=True)
class HopperBackwardConfig:
    """`linear_backward` where the Gluon kernel computes at least one product; see `LinearBackwardConfig`."""

    grad_x: HopperConfig | TilesConfig
    grad_w: HopperConfig | TilesConfig
    grad_bias: ColumnsConfig
