"""Launch parameters of attention forward, per arch. Functions of the declared features alone; they import no Triton.

The numbers of bytes behind the tiles: a block of keys and values takes ``block * (head_dim + value_dim) * itemsize`` of
shared memory per stage, the queries ``rows * head_dim * itemsize`` more.
"""

from collections.abc import Mapping
from typing import Any

from opmux.arch import Arch
from opmux_triton.arithmetic import padded

_LITTLE_SHARED = ((8, 6), (8, 7), (8, 9), (12, 0), (12, 1))
"""NVIDIA archs whose blocks have 99 KiB of shared memory at most."""


def width(features: Mapping[str, Any]) -> int:
    """The larger of the two head sizes, as the kernels pad it."""
    largest: int = max(1, features["head_dim"], features["value_dim"])
    return padded(largest)


def forward_config(arch: Arch, features: Mapping[str, Any]) -> dict[str, Any]:
    """Tiles for bfloat16 and float16."""
    wide = width(features)
    rows, block, warps, stages = _half_tiles(arch, wide)
    if arch.vendor == "amd" and _uneven(features):
        # Masks of loads live in scalar registers, of which there are few; narrow rows take the most loads.
        rows, stages = min(rows, 32 if min(features["head_dim"], features["value_dim"]) < 16 else 64), 1
    queries = 1 << max(0, features.get("bucket(seq_q)", features.get("bucket(max_seqlen_q)", 30)))
    while rows > 16 and rows > queries:  # few queries: no rows for those that do not exist
        rows //= 2
        warps = max(4, warps // 2)
    config: dict[str, Any] = {"rows": rows, "block": block, "num_warps": warps, "num_stages": stages}
    config |= {"cache": _cache(arch), "tma": arch.vendor == "nvidia" and arch.number >= (9, 0) and rows >= 64}
    if arch.vendor == "amd" and arch.name.startswith("gfx9"):
        config |= {"matrix_instr_nonkdim": 16, "waves_per_eu": 2 if wide <= 128 else 1}
    return config | {"apart": _apart(arch, wide)}


def float32_config(arch: Arch, features: Mapping[str, Any]) -> dict[str, Any]:
    """Tiles for float32, whose products have no matrix units on NVIDIA: small, as they live in registers."""
    wide = width(features)
    rows, block, warps = (32, 16, 4) if wide <= 64 else (16, 16, 8)
    if arch.vendor == "cpu":
        rows, block = 32, 16
    stages = 2 if arch.vendor == "nvidia" else 1
    config: dict[str, Any] = {"rows": rows, "block": block, "num_warps": warps, "num_stages": stages}
    return config | {"cache": _cache(arch), "tma": False, "apart": wide > 64}


def _uneven(features: Mapping[str, Any]) -> bool:
    """Whether columns are masked: a head size that is not a power of two, or less than 16."""
    sizes: tuple[int, int] = (features["head_dim"], features["value_dim"])
    return any(n < 16 or n & (n - 1) for n in sizes)


def _apart(arch: Arch, wide: int) -> bool:
    """Whether results that are not finite are computed anew by a second launch: where one kernel would spill."""
    return arch.vendor == "amd" and wide >= 128


def _half_tiles(arch: Arch, wide: int) -> tuple[int, int, int, int]:
    """(rows, block, warps, stages)."""
    if arch.vendor == "cpu":
        return 32, 16, 4, 1
    if arch.vendor == "amd":
        if arch.name.startswith("gfx9"):
            return (128, 32, 8, 2) if wide <= 128 else (64, 32, 8, 1)
        return (64, 32, 4, 1) if wide <= 128 else (32, 16, 4, 1)
    if arch.number in _LITTLE_SHARED:
        if wide <= 64:
            return 128, 64, 4, 2
        return (128, 32, 8, 2) if wide <= 128 else (64, 16, 4, 2)
    if arch.number < (9, 0):
        if wide <= 64:
            return 128, 64, 4, 3
        return (128, 64, 8, 2) if wide <= 128 else (64, 32, 4, 2)
    return (64, 64, 4, 3) if wide <= 128 else (64, 64, 8, 2)


def _cache(arch: Arch) -> int:
    """How many bytes of keys and values are read at a time, to stay in the cache that all units share."""
    return 32 << 20 if arch.vendor == "nvidia" else 128 << 20


def hopper_config(arch: Arch, features: Mapping[str, Any]) -> dict[str, Any]:
    """Blocks and rings of the Gluon kernel.

    ``narrow`` is the number of warpgroups where masks need more registers, see `gluon_forward`; ``otherwise`` is for
    what turns out at the call not to suit the kernel. At 64 columns the exponentials take as long as the products: a
    third warpgroup keeps both units busy.
    """
    small = width(features) <= 64
    config: dict[str, Any] = {"warpgroups": 3 if small else 2, "narrow": 2, "block": 128, "stages": 3 if small else 2}
    config |= {"turns": False, "persistent": True, "cache": _cache(arch)}
    return config | {"otherwise": forward_config(arch, features)}
