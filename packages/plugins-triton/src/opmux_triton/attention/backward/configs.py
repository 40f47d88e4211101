"""Launch parameters of attention's backward, per arch. Functions of the declared features alone; they import no Triton.

A tile has ``block_m`` queries and ``block_n`` keys. In the kernel of keys and values the loop goes over queries, so
its key tile is the larger one; in the kernel of queries the other way round.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from opmux.arch import Arch
from opmux_triton.arithmetic import padded


def backward_config(arch: Arch, features: Mapping[str, Any]) -> dict[str, Any]:
    """For 16-bit operands: matrix units, tiles by the wider of the two head dims."""
    dim = _padded(features)
    if arch.vendor == "amd":
        return _record(_amd(arch, dim), nonkdim=16)
    if arch.name == "sm_90":
        return _record(_hopper(dim))
    if arch.name in ("sm_80", "sm_100", "sm_103"):
        return _record(_large(dim))
    return _record(_small(dim))


def hopper_config(arch: Arch, features: Mapping[str, Any]) -> dict[str, Any]:
    """Of the Gluon kernel; ``otherwise`` is for repairs, and for what turns out at the call not to suit it."""
    # Measured: narrow heads wait for the exchange of score gradients, which `late` takes off their way.
    narrow = features["head_dim"] <= 64
    return {
        "stages": 2,
        "together": 8 if narrow else 0,
        "bulk": False,
        "late": narrow,
        "otherwise": backward_config(arch, features),
    }


def float32_config(arch: Arch, features: Mapping[str, Any]) -> dict[str, Any]:
    """For float32 operands, multiplied without matrix units: small tiles that leave registers for the sums."""
    dim = _padded(features)
    tile = (32, 32, 8, 1) if dim <= 128 else (16, 16, 8, 1)
    return _record(Tiles(tile, tile, tile, tile, tile), nonkdim=16 if arch.vendor == "amd" else 0)


Launch = tuple[int, int, int, int]
"""BLOCK_M, BLOCK_N, num_warps, num_stages."""


class Tiles(NamedTuple):
    """Of each kernel; those of capped scores where the others leave no registers for them."""

    keys_values: Launch
    queries: Launch
    repair: Launch
    keys_values_capped: Launch
    queries_capped: Launch


_REPAIR: Launch = (32, 32, 8, 1)
_REPAIR_NARROW: Launch = (32, 32, 4, 1)
_REPAIR_SMALL: Launch = (16, 16, 4, 1)
"""Runs hardly ever: small, so that it has registers to spare for cleaning operands."""


def _padded(features: Mapping[str, Any]) -> int:
    widest: int = max(features["head_dim"], features["value_dim"], 1)
    return padded(widest)


def _record(tiles: Tiles, precision: str = "ieee", nonkdim: int = 0) -> dict[str, Any]:
    record: dict[str, Any] = {"precision": precision, "statistics": {"rows": 16, "num_warps": 4}}
    for name, (block_m, block_n, warps, stages) in tiles._asdict().items():
        options = {"num_warps": warps, "num_stages": stages}
        if nonkdim:
            options |= {"matrix_instr_nonkdim": nonkdim}
        record[name] = {"block_m": block_m, "block_n": block_n, "options": options}
    record["repair_keys_values"] = record["repair_queries"] = record.pop("repair")
    return record


def _hopper(dim: int) -> Tiles:
    if dim <= 64:
        return Tiles((64, 128, 8, 2), (128, 64, 8, 3), _REPAIR_NARROW, (64, 128, 8, 2), (128, 64, 8, 2))
    if dim <= 128:
        return Tiles((32, 64, 4, 3), (128, 64, 8, 3), _REPAIR, (32, 32, 8, 2), (64, 64, 8, 2))
    return Tiles((32, 32, 8, 2), (64, 32, 8, 2), _REPAIR, (32, 32, 8, 2), (64, 32, 8, 2))


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
