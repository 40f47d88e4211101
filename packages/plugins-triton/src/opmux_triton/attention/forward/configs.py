"""Launch parameters of attention forward, per arch. Functions of the declared features alone; loads no Triton.

The numbers of bytes behind the tiles: a block of keys and values takes ``block * (head_dim + value_dim) * itemsize`` of
shared memory per stage, the queries ``rows * head_dim * itemsize`` more.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opmux.plugin import Arch
from opmux_triton.archs import shared_memory
from opmux_triton.arithmetic import padded
from opmux_triton.compiler_options import CompilerOptions
from opmux_triton.config_checks import require_at_least, require_powers_of_two


@dataclass(frozen=True, kw_only=True)
class ForwardConfig(CompilerOptions):
    """Launch parameters of the portable kernel.

    Attributes:
        rows: queries of a tile.
        block: keys of a block.
        cache: bytes of keys and values that are read at a time, to stay in the cache that all units share.
        tma: whether keys and values come by tensor descriptors where they can.
        apart: whether results that are not finite are computed again by a second launch, where one kernel would spill.
    """

    rows: int
    block: int
    cache: int
    tma: bool
    apart: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        require_powers_of_two(self, "rows", "block")
        require_at_least(16, self, "rows", "block")


@dataclass(frozen=True)
class HopperConfig:
    """Launch parameters of the Gluon kernel.

    Attributes:
        warpgroups: computing warpgroups of a program, each with 64 queries of a tile.
        narrow: computing warpgroups where masks need more registers.
        block: keys of a block.
        slots: tiles of queries in shared memory: with 2, the next one is loaded while one is computed.
        stages: blocks of keys and of values in shared memory.
        turns: whether warpgroups issue their products in turn.
        persistent: whether there is one program for each multiprocessor; otherwise one for each tile.
        cache: see `ForwardConfig`.
        otherwise: the portable kernel's parameters, for calls that turn out not to suit this one.
        short_block: keys of a block under a causal mask where there are more than 128 keys, up to 256; None for
            ``block``.
    """

    warpgroups: int
    narrow: int
    block: int
    slots: int
    stages: int
    turns: bool
    persistent: bool
    cache: int
    otherwise: ForwardConfig
    short_block: int | None = None

    def __post_init__(self) -> None:
        require_powers_of_two(self, "block", *(() if self.short_block is None else ("short_block",)))
        require_at_least(1, self, "slots", "stages")
        if not {self.warpgroups, self.narrow} <= {2, 3}:
            raise ValueError(f"warpgroups and narrow expected 2 or 3, got {self.warpgroups} and {self.narrow}")


def column_parts(columns: int) -> tuple[int, int]:
    """(columns, rest): the powers of two in which the Gluon kernel holds a head; a rest of 0 is none."""
    main = 64 if columns <= 96 else 128 if columns <= 192 else 256
    return main, 0 if columns <= main else max(16, padded(columns - main))


def forward_config(arch: Arch, features: Mapping[str, Any]) -> ForwardConfig:
    """Tiles for bfloat16 and float16."""
    wide = _width(features)
    rows, block, warps, stages = _half_tiles(arch, wide)
    if arch.vendor == "amd" and _uneven(features):
        # Masks of loads live in scalar registers, of which there are few; narrow rows take the most loads.
        rows, stages = min(rows, 32 if min(features["head_dim"], features["value_dim"]) < 16 else 64), 1
    queries = 1 << max(0, features.get("bucket(seq_q)", features.get("bucket(max_seqlen_q)", 30)))
    while rows > 16 and rows > queries:  # few queries: no rows for those that do not exist
        rows //= 2
        warps = max(4, warps // 2)
    cdna = arch.vendor == "amd" and arch.name.startswith("gfx9")
    return ForwardConfig(
        rows=rows,
        block=block,
        num_warps=warps,
        num_stages=stages,
        cache=_cache(arch),
        tma=arch.vendor == "nvidia" and arch.number >= (9, 0) and rows >= 64,
        matrix_instr_nonkdim=16 if cdna else None,
        waves_per_eu=(2 if wide <= 128 else 1) if cdna else None,
        apart=_apart(arch, wide),
    )


def float32_config(arch: Arch, features: Mapping[str, Any]) -> ForwardConfig:
    """Tiles for float32, whose products have no matrix units on NVIDIA: small, as they live in registers."""
    wide = _width(features)
    rows, block, warps = (32, 16, 4) if wide <= 64 else (16, 16, 8)
    if arch.vendor == "cpu":
        rows, block = 32, 16
    stages = 2 if arch.vendor == "nvidia" else 1
    return ForwardConfig(
        rows=rows, block=block, num_warps=warps, num_stages=stages, cache=_cache(arch), tma=False, apart=wide > 64
    )


def hopper_config(arch: Arch, features: Mapping[str, Any]) -> HopperConfig:
    """Blocks and rings of the Gluon kernel.

    At 64 columns the exponentials take as long as the products: a third warpgroup keeps both units busy. Past 128, the
    sums leave registers for the scores of 64 keys; at 256, shared memory for one tile of queries. Turns were measured:
    they gain 1 to 3 % where heads come in two parts, and lose elsewhere. Where a causal
    mask leaves two blocks of 128 keys, much of them is hidden or past the end: blocks of 64 leave out more (155 x 165
    and 166 x 184 tokens on an H200: from 29.6 to 23.4 and from 79.7 to 60.0 us).
    """
    width = sum(column_parts(max(features["head_dim"], features["value_dim"])))
    small = width <= 64
    return HopperConfig(
        warpgroups=3 if small else 2,
        narrow=2,
        block=128 if width <= 128 else 64,
        slots=2 if width <= 192 else 1,
        stages=3 if small else 2,
        turns=width in (80, 96) or 128 < width <= 192,
        persistent=True,
        cache=_cache(arch),
        otherwise=forward_config(arch, features),
        short_block=64 if small else None,
    )


def _width(features: Mapping[str, Any]) -> int:
    """The larger of the two head sizes, as the kernels pad it."""
    return padded(max(features["head_dim"], features["value_dim"]))


def _uneven(features: Mapping[str, Any]) -> bool:
    """Whether columns are masked: a head size that is not a power of two, or less than 16."""
    sizes: tuple[int, int] = (features["head_dim"], features["value_dim"])
    return any(n != padded(n) for n in sizes)


def _apart(arch: Arch, wide: int) -> bool:
    return arch.vendor == "amd" and wide >= 128


def _half_tiles(arch: Arch, wide: int) -> tuple[int, int, int, int]:
    """(rows, block, warps, stages)."""
    if arch.vendor == "cpu":
        return 32, 16, 4, 1
    if arch.vendor == "amd":
        if arch.name.startswith("gfx9"):
            return (128, 32, 8, 2) if wide <= 128 else (64, 32, 8, 1)
        return (64, 32, 4, 1) if wide <= 128 else (32, 16, 4, 1)
    # sm_87 has more shared memory than sm_86, but no tiles of its own: none were measured.
    if shared_memory(arch.name) <= 99 * 1024 or arch.name == "sm_87":
        if wide <= 64:
            return 128, 64, 4, 2
        return (128, 32, 8, 2) if wide <= 128 else (64, 16, 4, 2)
    if arch.number < (9, 0):
        if wide <= 64:
            return 128, 64, 4, 3
        return (128, 64, 8, 2) if wide <= 128 else (64, 32, 4, 2)
    return (64, 64, 4, 3) if wide <= 128 else (64, 64, 8, 2)


def _cache(arch: Arch) -> int:
    """What stays in the L2 cache (NVIDIA) or in the last-level cache (AMD)."""
    return 32 << 20 if arch.vendor == "nvidia" else 128 << 20
