"""Launch parameters of paged attention, per arch. Functions of the declared features alone; loads no Triton."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from opmux.plugin import Arch
from opmux_triton.archs import shared_memory
from opmux_triton.arithmetic import padded
from opmux_triton.compiler_options import CompilerOptions
from opmux_triton.config_checks import require_at_least, require_powers_of_two

_MORE_TILES: dict[str, Any] = {"more_tiles": 8, "filled": 2560, "far": 1 << 14}
"""Of shares of codes on Hopper: a batch of fewer tiles than units is cut into splits until joining costs little."""


@dataclass(frozen=True, kw_only=True)
class PathConfig(CompilerOptions):
    """Launch parameters of one path.

    Attributes:
        rows: rows of a tile; decoding takes fewer where there are fewer.
        block_n: keys of a block.
        programs: how many programs for each unit of the device the splits of the keys should give.
        least: the fewest keys that are worth a split, where that leaves no unit idle.
    """

    rows: int
    block_n: int
    programs: int
    least: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require_powers_of_two(self, "rows", "block_n")
        require_at_least(16, self, "rows", "block_n")
        require_at_least(1, self, "programs", "least")


@dataclass(frozen=True, kw_only=True)
class SharesConfig(CompilerOptions):
    """Launch parameters of decoding in equal shares of a batch's keys, and the calls that it is for.

    Attributes:
        rows: the most rows of a tile, which are the query heads that share a kv head.
        block_n: keys of a block; half of them in tiles of more than 16 rows, where a block has more than 8 KiB.
        programs: programs for each unit of the device, all of which run at the same time.
        least: the fewest keys that are worth a share.
        tiles: the most tiles of a sequence.
        most: the most tiles of all sequences, for each unit of the device.
        reach: the fewest keys, as bounded, that the longest sequence sees.
        more_tiles: the most tiles of a sequence of many keys; 0 for no more than ``tiles``.
        filled: how many keys these are where all tiles are at least one for each unit of the device: sequences of one
            batch differ in length, and splits do not make up for it.
        far: how many they are elsewhere.
    """

    rows: int
    block_n: int
    programs: int
    least: int
    tiles: int
    most: int
    reach: int
    more_tiles: int = 0
    filled: int = 1
    far: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_powers_of_two(self, "rows", "block_n")
        require_at_least(16, self, "rows", "block_n")
        require_at_least(1, self, "programs", "least", "tiles", "most", "reach", "filled", "far")
        require_at_least(0, self, "more_tiles")

    def takes(self, tiles: int, batch: int, reach: int, units: int) -> bool:
        """Whether a batch whose longest sequence sees so many keys is cut into equal shares, on so many units."""
        if batch * tiles > self.most * units:
            return False
        if tiles <= self.tiles and reach >= self.reach:
            return True
        return tiles <= self.more_tiles and reach >= (self.filled if batch * tiles >= units else self.far)

    def reached(self, reach: int) -> tuple[bool, ...]:
        """What `takes` reads of a reach, so that calls of equal answers are alike."""
        return tuple(reach >= bound for bound in (self.reach, self.filled, self.far))


@dataclass(frozen=True)
class CombineConfig:
    """Launch parameters of the kernel that joins splits of the keys.

    Attributes:
        splits: the most splits that are joined at a time; four times as many where that would take more than four
            turns.
        num_warps: warps for each 16 of them.
    """

    splits: int
    num_warps: int

    def __post_init__(self) -> None:
        require_powers_of_two(self, "splits", "num_warps")


@dataclass(frozen=True)
class PagedConfig:
    """Launch parameters of paged attention.

    Attributes:
        decode: for sequences with few new tokens.
        prefill: for all other sequences.
        combine: for joining splits of the keys.
        shares: for decoding in equal shares, where each sequence has one new token; None for never.
    """

    decode: PathConfig
    prefill: PathConfig
    combine: CombineConfig
    shares: SharesConfig | None = None


@dataclass(frozen=True)
class RolesConfig:
    """Launch parameters of the Gluon prefill.

    Attributes:
        block: keys at a time.
        stages: blocks of keys and of values in shared memory.
        slots: tiles of queries in shared memory, of each computing warpgroup.
        loaders: warps that load: 1, 2 (keys and values) or 4 (halves of both).
        registers: of a thread of a computing warpgroup.
        loading_registers: of a thread that loads. A multiprocessor has
            ``2 * registers + loading_registers = 3 * 168`` for one of each.
    """

    block: int
    stages: int
    slots: int
    loaders: Literal[1, 2, 4]
    registers: int
    loading_registers: int

    def __post_init__(self) -> None:
        require_powers_of_two(self, "block")
        require_at_least(1, self, "stages", "slots")
        if 2 * self.registers + self.loading_registers > 3 * 168:
            raise ValueError(
                f"2 * registers + loading_registers expected at most {3 * 168}, "
                f"got {2 * self.registers + self.loading_registers}"
            )


@dataclass(frozen=True, kw_only=True)
class HopperConfig(PagedConfig):
    """Launch parameters where the Gluon kernel does the prefill.

    Attributes:
        decode, prefill, combine: as in `PagedConfig`; ``prefill`` is for calls that do not suit the Gluon kernel.
        hopper: for the Gluon kernel.
    """

    hopper: RolesConfig


def halves_config(arch: Arch, features: Mapping[str, Any]) -> PagedConfig:
    """For 16-bit caches."""
    return _config(arch, features, 2)


def float32_config(arch: Arch, features: Mapping[str, Any]) -> PagedConfig:
    """For float32 caches."""
    return _config(arch, features, 4)


def codes_config(arch: Arch, features: Mapping[str, Any]) -> PagedConfig:
    """For caches of 8-bit codes beside 16-bit queries.

    Splits take blocks of as many keys as in 16 bits, in deeper rings: a ring holds bytes, and the products 16 bits of
    one block. Heads of 128 have three stages on Hopper (712 sequences of 371 to 1113 keys on an H200: 105 us, and 112
    with four stages), and are split for three programs a multiprocessor, as many as its registers hold (8 x 4096 keys
    of 8 kv heads: 36 us, and 43 split for four; 16 x 16384: 170 us for 213). Shares take blocks of as many bytes (on an
    H200 12 to 16 % faster), but of heads of 64 and less blocks of 64 keys, in four programs (511 sequences of 785 to
    2349 keys: 85 us, and 98 in two programs with blocks of 256). Up to eight kv heads are cut into shares too where
    sequences are long: where their lengths differ by up to three times these are up to 1.6 times as fast as splits, and
    where they are equal up to 4 % slower (16 batches of 82 to 786 MB).
    """
    config = _config(arch, features, 2)
    if arch.vendor == "amd":
        return config
    shares, hopper = config.shares, arch.name == "sm_90"
    row = 2 * max(padded(features[dim]) for dim in ("head_dim", "value_dim"))
    deepest = 3 if hopper and row in (256, 512) else 4
    if shares is not None and hopper and row <= 128:
        shares = replace(shares, block_n=64, num_stages=4, programs=4, maxnreg=128)
    elif shares is not None:
        shares = replace(shares, block_n=2 * _keys(row), programs=2)
    decode = replace(config.decode, num_stages=deepest if config.decode.num_stages > 2 else 2)
    if hopper and shares is not None:
        shares = replace(shares, **_MORE_TILES)
        if row <= 512:
            decode = replace(decode, programs=4 if row <= 128 else 3 if row == 256 else 2)
    return replace(config, decode=decode, shares=shares)


def codes_float32_config(arch: Arch, features: Mapping[str, Any]) -> PagedConfig:
    """For caches of 8-bit codes beside float32 queries."""
    return _config(arch, features, 4)


def hopper_config(arch: Arch, features: Mapping[str, Any]) -> HopperConfig:
    """For the Gluon prefill of 16-bit caches."""
    portable = halves_config(arch, features)
    hopper = RolesConfig(block=128, stages=2, slots=2, loaders=4, registers=232, loading_registers=40)
    return HopperConfig(decode=portable.decode, prefill=portable.prefill, combine=portable.combine, hopper=hopper)


def _config(arch: Arch, features: Mapping[str, Any], itemsize: int) -> PagedConfig:
    k_row, v_row = (itemsize * padded(features[dim]) for dim in ("head_dim", "value_dim"))
    amd = arch.vendor == "amd"
    decode = PathConfig(
        rows=32 if itemsize == 2 else 16,
        block_n=64,
        num_warps=4,
        # Short rows: a shallower ring leaves room for more programs (8 x 2k of 8/64 heads on an H200: 1006 to 1043 us).
        num_stages=2 if amd else 4 if arch.number >= (9, 0) and k_row > 128 else 3,
        # Few long sequences: parts cost a second pass, so each is longer (1 x 128k on an H200: 137 against 147 us).
        programs=2 if features["bucket(batch)"] <= 1 else 4,
        least=256,
        matrix_instr_nonkdim=16 if amd else None,
    )
    if itemsize == 4:  # products in float32 without matrix units take registers
        keys = 16 if max(k_row, v_row) > 512 else 64 if max(k_row, v_row) <= 256 and arch.vendor == "nvidia" else 32
        decode = replace(decode, block_n=keys, num_stages=2, num_warps=4 if amd else 8)
    prefill = _prefill(arch, max(k_row, v_row) // itemsize, itemsize)
    # Warpgroup products read their operands from the ring itself; elsewhere one block of it is in registers.
    waiting = 0 if arch.number >= (9, 0) and arch.vendor == "nvidia" else 1
    return PagedConfig(
        decode=_fitted(decode, arch, k_row, v_row, waiting=1),
        prefill=_fitted(prefill, arch, k_row, v_row, waiting=waiting),
        # Splits are read before it is known how many there are (100 keys with room for 128k: 7.1 us, and 8.2 with 64).
        combine=CombineConfig(splits=16, num_warps=1 if amd or v_row <= 128 else 2),
        shares=_shares(arch, max(k_row, v_row)) if itemsize == 2 else None,
    )


def _shares(arch: Arch, row: int) -> SharesConfig | None:
    """Equal shares by the bytes of a row of keys or values; measured for 1 and 2 kv heads.

    Two programs of a unit are enough to keep its loads in flight, and each more costs what it takes to begin and two
    slots to be joined (1 to 300 sequences of 0.7k to 50k keys on an H200: 6 to 19 % faster than splits of each
    sequence). Rows of 256 bytes take three programs with blocks of half as many keys (0.91 to 1.01 times as long at
    five batches of 28 to 142 MB). From about 8 sequences for each unit on, these are better left whole.
    """
    if not (arch.vendor == "cpu" or (arch.vendor == "nvidia" and arch.number >= (9, 0))):
        return None
    thirds = arch.name == "sm_90" and 128 < row <= 256
    return SharesConfig(
        rows=64 if row <= 256 else 32,
        block_n=32 if thirds else _keys(row),
        num_warps=4,
        num_stages=3,
        programs=3 if thirds else 2,
        least=256,
        tiles=2,
        most=8,
        reach=1024,
    )


def _keys(row: int) -> int:
    """Keys of a block of shares, by the bytes of a row in 16 bits."""
    return 128 if row <= 128 else 64 if row <= 256 else 32


def _prefill(arch: Arch, width: int, itemsize: int) -> PathConfig:
    """Tiles of prefill by the wider of the head dims: as large as registers allow without spilling."""
    narrow, amd = width <= 128, arch.vendor == "amd"
    if itemsize == 4:
        rows, keys, warps = (32, 16, 4) if amd else (16, 32 if narrow else 16, 8)
    elif amd:
        rows, keys, warps = (128, 64, 8) if narrow else (64, 32, 4)
    elif arch.number >= (9, 0):
        rows, keys, warps = (128, 64, 8) if narrow else (64, 32, 8)
    else:
        rows, keys, warps = (128, 32, 8) if narrow else (64, 32, 8)
    return PathConfig(
        rows=rows,
        block_n=keys,
        num_warps=warps,
        num_stages=2,
        programs=1,
        least=1024,
        matrix_instr_nonkdim=16 if amd else None,
    )


def _fitted(path: PathConfig, arch: Arch, k_row: int, v_row: int, waiting: int) -> PathConfig:
    """A path with fewer stages, then fewer keys, until its blocks fit into shared memory.

    Args:
        path: the path.
        arch: the arch.
        k_row, v_row: bytes of a row of keys and of values.
        waiting: how many of the blocks in flight are not in shared memory.
    """
    while path.block_n > 16:
        # Blocks in flight, queries, weights between layouts.
        keys, stages = path.block_n, path.num_stages
        if (k_row + v_row) * keys * (stages - waiting) + path.rows * (k_row + 2 * keys) <= shared_memory(arch.name):
            break
        path = replace(path, num_stages=stages - 1) if stages > 2 else replace(path, block_n=keys // 2)
    return path
