"""Launch parameters of attention's backward, per arch. Functions of the declared features alone; loads no Triton.

A tile has ``block_m`` queries and ``block_n`` keys. In the kernel of keys and values the loop goes over queries, so
its key tile is the larger one; in the kernel of queries the other way round.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from opmux.plugin import Arch
from opmux_triton.arithmetic import padded
from opmux_triton.compiler_options import CompilerOptions
from opmux_triton.config_checks import require_at_least, require_powers_of_two


@dataclass(frozen=True, kw_only=True)
class TileConfig(CompilerOptions):
    """Launch parameters of one kernel.

    Attributes:
        block_m: queries of a tile.
        block_n: keys of a tile.
    """

    block_m: int
    block_n: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require_powers_of_two(self, "block_m", "block_n")
        require_at_least(16, self, "block_m", "block_n")


@dataclass(frozen=True)
class StatisticsConfig:
    """Launch parameters of the kernel that finds log-sum and shift of each row.

    Attributes:
        rows: rows of a program.
        num_warps: warps of a program.
    """

    rows: int
    num_warps: int

    def __post_init__(self) -> None:
        require_powers_of_two(self, "rows", "num_warps")


SHARES = (1, 2, 3, 4, 6, 8)
"""How many programs may divide the queries of a tile of keys among them."""


def _check_shares(config: Any) -> None:
    if not 0 <= config.shares <= SHARES[-1]:
        raise ValueError(f"shares expected 0 to {SHARES[-1]}, got {config.shares}")


@dataclass(frozen=True)
class BackwardConfig:
    """Launch parameters of the portable kernels.

    Attributes:
        precision: of the products, as ``tl.dot`` takes it.
        statistics: of the statistics of the rows.
        keys_values: of the gradients of keys and values.
        queries: of the gradients of queries.
        keys_values_capped, queries_capped: the same for capped scores, whose slopes take registers.
        repair_keys_values, repair_queries: of the second pass over tiles with results that are not finite.
        shares: programs that divide the queries of a tile of keys among them, 1 to 8; 0 for as many as the device has
            room for, which is decided in the call.
    """

    precision: Literal["ieee", "tf32", "tf32x3"]
    statistics: StatisticsConfig
    keys_values: TileConfig
    queries: TileConfig
    keys_values_capped: TileConfig
    queries_capped: TileConfig
    repair_keys_values: TileConfig
    repair_queries: TileConfig
    shares: int = 0

    def __post_init__(self) -> None:
        _check_shares(self)


@dataclass(frozen=True)
class HopperConfig:
    """Launch parameters of the Gluon kernel.

    Attributes:
        stages: blocks of queries in shared memory.
        together: (batch, kv head) pairs whose tiles run at the same time; 0 for all.
        bulk: whether gradients of queries are added by bulk copies.
        late: whether a block's score gradients are multiplied one step later.
        otherwise: the portable kernels' parameters, for repairs and for calls that turn out not to suit this one.
        shares: as in `BackwardConfig`.
    """

    stages: int
    together: int
    bulk: bool
    late: bool
    otherwise: BackwardConfig
    shares: int = 0

    def __post_init__(self) -> None:
        require_at_least(1, self, "stages")
        require_at_least(0, self, "together")
        _check_shares(self)


@dataclass(frozen=True)
class WideConfig:
    """Launch parameters of the Gluon kernels for heads of more than 128.

    Attributes:
        stages: blocks of queries, or of keys, in shared memory.
        together: pairs of a batch entry and a head whose tiles run at the same time; 0 for all.
        otherwise: the portable kernels' parameters, for repairs and for calls that turn out not to suit this one.
    """

    stages: int
    together: int
    otherwise: BackwardConfig

    def __post_init__(self) -> None:
        require_at_least(1, self, "stages")
        require_at_least(0, self, "together")


def backward_config(arch: Arch, features: Mapping[str, Any]) -> BackwardConfig:
    """For 16-bit operands: matrix units, tiles by the wider of the two head dims."""
    dim = _width(features)
    if arch.vendor == "amd":
        return _config(_amd(arch, dim), nonkdim=16)
    if arch.name == "sm_90":
        return _config(_hopper(dim))
    if arch.name in ("sm_80", "sm_100", "sm_103"):
        return _config(_large(dim))
    return _config(_small(dim))


def hopper_config(arch: Arch, features: Mapping[str, Any]) -> HopperConfig:
    """For the Gluon kernel. Measured: narrow heads wait for the exchange of score gradients, which ``late`` hides.

    What a few pairs read stays in the cache that all units share, which gained up to 8 % at 128 columns.
    """
    narrow = features["head_dim"] <= 64
    return HopperConfig(
        stages=2, together=8 if narrow else 4, bulk=False, late=narrow, otherwise=backward_config(arch, features)
    )


def hopper_wide_config(arch: Arch, features: Mapping[str, Any]) -> WideConfig:
    """For the Gluon kernels for wide heads. Measured: what few pairs read stays in the cache that all units share."""
    return WideConfig(stages=2, together=4, otherwise=backward_config(arch, features))


def float32_config(arch: Arch, features: Mapping[str, Any]) -> BackwardConfig:
    """For float32 operands, multiplied without matrix units: small tiles that leave registers for the sums."""
    tile = (32, 32, 8, 1) if _width(features) <= 128 else (16, 16, 8, 1)
    return _config(Tiles(tile, tile, tile, tile, tile), nonkdim=16 if arch.vendor == "amd" else None)


Launch = tuple[int, int, int, int]
"""block_m, block_n, num_warps, num_stages."""


class Tiles(NamedTuple):
    """The tiles of each kernel; those for capped scores leave registers for slopes."""

    keys_values: Launch
    queries: Launch
    repair: Launch
    keys_values_capped: Launch
    queries_capped: Launch


_REPAIR: Launch = (32, 32, 8, 1)
_REPAIR_NARROW: Launch = (32, 32, 4, 1)
_REPAIR_SMALL: Launch = (16, 16, 4, 1)
"""Small tiles, which leave registers for cleaning operands; repairs are rare."""


def _width(features: Mapping[str, Any]) -> int:
    return padded(max(features["head_dim"], features["value_dim"]))


def _config(tiles: Tiles, nonkdim: int | None = None) -> BackwardConfig:
    def tile(launch: Launch) -> TileConfig:
        block_m, block_n, warps, stages = launch
        return TileConfig(
            block_m=block_m, block_n=block_n, num_warps=warps, num_stages=stages, matrix_instr_nonkdim=nonkdim
        )

    return BackwardConfig(
        precision="ieee",
        statistics=StatisticsConfig(rows=16, num_warps=4),
        keys_values=tile(tiles.keys_values),
        queries=tile(tiles.queries),
        keys_values_capped=tile(tiles.keys_values_capped),
        queries_capped=tile(tiles.queries_capped),
        repair_keys_values=tile(tiles.repair),
        repair_queries=tile(tiles.repair),
    )


def _hopper(dim: int) -> Tiles:
    if dim <= 64:
        return Tiles((64, 128, 8, 2), (128, 64, 8, 3), _REPAIR_NARROW, (64, 128, 8, 2), (128, 64, 8, 2))
    if dim <= 128:
        return Tiles((32, 64, 4, 3), (128, 64, 8, 3), _REPAIR, (32, 32, 8, 2), (64, 64, 8, 2))
    # Measured: 64 rows, which warpgroup instructions need, take half the time of 32.
    return Tiles((64, 64, 8, 2), (64, 64, 8, 2), _REPAIR, (32, 32, 8, 2), (64, 32, 8, 2))


def _large(dim: int) -> Tiles:
    """163 KiB of shared memory."""
    if dim <= 64:
        return Tiles((64, 128, 8, 2), (128, 64, 8, 2), _REPAIR_NARROW, (64, 128, 8, 2), (128, 64, 8, 2))
    if dim <= 128:
        return Tiles((32, 128, 8, 2), (128, 32, 8, 2), _REPAIR, (32, 64, 8, 2), (64, 32, 8, 2))
    return Tiles((32, 32, 8, 2), (64, 32, 8, 1), _REPAIR, (32, 32, 8, 2), (64, 32, 8, 1))


def _small(dim: int) -> Tiles:
    """99 KiB of shared memory, or 64."""
    if dim <= 64:
        return Tiles((32, 64, 4, 2), (64, 32, 4, 2), _REPAIR_NARROW, (32, 64, 4, 2), (64, 32, 4, 2))
    if dim <= 128:
        return Tiles((32, 64, 8, 1), (64, 32, 4, 1), _REPAIR, (32, 64, 8, 1), (64, 32, 8, 1))
    return Tiles((16, 32, 8, 1), (32, 16, 4, 1), _REPAIR_SMALL, (16, 32, 8, 1), (32, 16, 4, 1))


def _amd(arch: Arch, dim: int) -> Tiles:
    """64 KiB of shared memory, wavefronts of 64 lanes (RDNA: 32)."""
    if not arch.name.startswith("gfx9"):
        return _small(dim)
    if dim <= 128:
        return Tiles((32, 64, 4, 1), (64, 32, 4, 1), _REPAIR_SMALL, (32, 64, 4, 1), (64, 32, 4, 1))
    return Tiles((16, 64, 4, 1), (64, 16, 4, 1), _REPAIR_SMALL, (16, 32, 4, 1), (32, 16, 4, 1))
