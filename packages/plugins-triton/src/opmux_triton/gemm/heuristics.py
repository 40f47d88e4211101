"""Which launch parameters a linear layer gets on an arch. Functions of the declared features alone; loads no Triton."""

from collections.abc import Mapping
from typing import Any

from opmux.plugin import Arch
from opmux_triton.archs import CDNA, shared_memory, usual_units
from opmux_triton.arithmetic import padded
from opmux_triton.gemm import hopper_heuristics
from opmux_triton.gemm.configs import (
    LinearBackwardConfig,
    LinearConfig,
    TileChange,
    TilesConfig,
)
from opmux_triton.gemm.occupancy import fills
from opmux_triton.gemm.vectors import columns, vector, vectors


def linear(arch: Arch, features: Mapping[str, Any]) -> LinearConfig:
    """16-bit `linear`."""
    n, k, exponent = features["n"], features["k"], features["bucket(tokens)"]
    if exponent == 0:
        return LinearConfig(vector=vector(arch, n, k, halves(arch, 2, n, k)))
    tiles = halves(arch, 1 << exponent, n, k)
    few = vectors(arch, 1 << exponent, n, k, tiles)
    return LinearConfig(tiles=tiles) if few is None else LinearConfig(vectors=few)


def linear_float32(arch: Arch, features: Mapping[str, Any]) -> LinearConfig:
    """float32 `linear`."""
    n, k, exponent = features["n"], features["k"], features["bucket(tokens)"]
    if exponent == 0:
        return LinearConfig(vector=vector(arch, n, k, floats(arch, 2, n, k)))
    return LinearConfig(tiles=floats(arch, 1 << exponent, n, k))


def linear_backward(arch: Arch, features: Mapping[str, Any]) -> LinearBackwardConfig:
    """16-bit `linear_backward`: grad_x is (tokens, k) over n, grad_w is (n, k) over tokens."""
    n, k, tokens = features["n"], features["k"], 1 << features["bucket(tokens)"]
    return LinearBackwardConfig(
        grad_x=halves(arch, tokens, k, n), grad_w=halves(arch, n, k, tokens), grad_bias=columns(arch)
    )


def linear_backward_float32(arch: Arch, features: Mapping[str, Any]) -> LinearBackwardConfig:
    """float32 `linear_backward`."""
    n, k, tokens = features["n"], features["k"], 1 << features["bucket(tokens)"]
    return LinearBackwardConfig(
        grad_x=floats(arch, tokens, k, n), grad_w=floats(arch, n, k, tokens), grad_bias=columns(arch)
    )


def halves(arch: Arch, m: int, n: int, k: int) -> TilesConfig:
    """A product in bfloat16 or float16."""
    if not arch.is_gpu:
        return _interpreted(m, k)
    if arch.name == "sm_90":
        return hopper_heuristics.portable(m, n, k)
    if arch.vendor == "amd":
        return _amd(arch, m, n, k)
    large = shared_memory(arch.name) >= 163 * 1024
    if m <= 128:
        height = padded(m)
        return _tiles(height, 128 if height <= 64 else 64, 64, 4, 4 if large else 3, **_kind(arch, height, 128, m, n))
    if large and fills(arch, 128, 256, m, n):
        return _tiles(128, 256, 64, 8, 3)
    return _tiles(128, 128, 32, 4, 4)


def _amd(arch: Arch, m: int, n: int, k: int) -> TilesConfig:
    """AMD: 64 KiB of LDS (160 on gfx950); one of the pipeline's stages is held in registers."""
    if arch.name not in CDNA:
        if m <= 64:
            return _tiles(padded(m), 64, 64, 4, 2, **_kind(arch, padded(m), 64, m, n))
        return _tiles(128, 128, 32, 8, 2)
    more: dict[str, Any] = {"matrix_instr_nonkdim": 16, "xcds": 1 if arch.name == "gfx90a" else 8}
    if m <= 128:
        height = padded(m)
        return _tiles(height, 64, 128, 4, 2, uneven=TileChange(block_k=64), **_kind(arch, height, 64, m, n), **more)
    if fills(arch, 256, 256, m, n):
        return _tiles(256, 256, 32, 8, 2, waves_per_eu=2, **more)
    return _tiles(128, 128, 64, 4, 2, waves_per_eu=2, uneven=TileChange(block_k=32, num_warps=8), **more)


def floats(arch: Arch, m: int, n: int, k: int) -> TilesConfig:
    """A product in float32 by fused multiply-adds, on CDNA by float32 matrix instructions."""
    if not arch.is_gpu:
        return _interpreted(m, k)
    if arch.name in CDNA:
        more: dict[str, Any] = {"matrix_instr_nonkdim": 16}
        if m <= 64:
            kind = _kind(arch, padded(m), 64, m, n)
            return _tiles(padded(m), 64, 64, 4, 2, uneven=TileChange(block_k=32), **kind, **more)
        return _tiles(128, 128, 32, 4, 2, uneven=TileChange(block_k=16, num_warps=8), **more)
    if m <= 32:
        return _tiles(padded(m), 64, 32, 4, 3 if arch.vendor == "nvidia" else 2, **_kind(arch, 32, 64, m, n))
    if fills(arch, 128, 128, m, n):
        return _tiles(128, 128, 16, 8, 3 if arch.vendor == "nvidia" else 2)
    return _tiles(64, 64, 16, *((8, 3) if arch.vendor == "nvidia" else (4, 2)), **_kind(arch, 64, 64, m, n))


def _interpreted(m: int, k: int) -> TilesConfig:
    """Small tiles of every kind, for the interpreter: shares where k is long, the transposed product for few rows."""
    return _tiles(16, 16, 16, 1, 1, kind="shares" if k >= 96 else "tiles", swap=m <= 4, group=2, sum_rows=8)


def _tiles(block_m: int, block_n: int, block_k: int, warps: int, stages: int, **more: Any) -> TilesConfig:
    return TilesConfig(block_m=block_m, block_n=block_n, block_k=block_k, num_warps=warps, num_stages=stages, **more)


def _kind(arch: Arch, block_m: int, block_n: int, m: int, n: int) -> dict[str, Any]:
    """Shares where whole tiles would leave a quarter of the multiprocessors without work."""
    tiles = -(-m // block_m) * -(-n // block_n)
    return {"kind": "shares", "per_unit": 2} if tiles < usual_units(arch.name) * 3 // 2 else {}
