"""Which launch parameters a grouped product gets on an arch, by the rows that a group has on average. Loads no Triton.

Groups of few rows are bound by reading the weights, which narrow tiles with deep pipelines do; groups of many rows are
bound by the matrix units.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from opmux.plugin import Arch
from opmux_triton.archs import CDNA, shared_memory, usual_units
from opmux_triton.grouped_gemm.configs import GroupedBackwardConfig, GroupedConfig, ScaledGroupedConfig
from opmux_triton.grouped_gemm.hopper_configs import HopperGroupedConfig


def grouped(arch: Arch, features: Mapping[str, Any]) -> GroupedConfig:
    """16-bit `grouped_linear` and `masked_grouped_linear`."""
    return _halves(arch, rows_of(features))


def grouped_float32(arch: Arch, features: Mapping[str, Any]) -> GroupedConfig:
    """float32 `grouped_linear` and `masked_grouped_linear`."""
    return _floats(arch, rows_of(features))


def scaled(arch: Arch, features: Mapping[str, Any]) -> ScaledGroupedConfig:
    """`scaled_grouped_linear` and `scaled_masked_grouped_linear`."""
    rows = rows_of(features)
    if not arch.is_gpu:
        return _codes(16, 16, 16, 1, 1)
    height = min(128, max(16, rows))
    if arch.vendor == "amd":
        more: dict[str, Any] = {"matrix_instr_nonkdim": 16} if arch.name in CDNA else {}
        return _codes(min(height, 64), 64, 128 if arch.name in CDNA else 64, 4, 2, **more)
    if shared_memory(arch.name) < 163 * 1024:
        return _codes(min(height, 64), 64, 128, 4, 3)
    tma = arch.name == "sm_90"
    if rows <= 32:
        wide = tma and features["k"] % 128 == 0 and _wide_tiles(features["n"], max(1, features["groups"]))
        width, stages, programs = (128, 5, 2) if wide else (64, 6, 3)
        return _codes(height, width, 128, 4, stages, per_unit=programs, tma=tma, uneven=32)
    if rows <= 64:
        return _codes(64, 128, 128, 4, 4, tma=tma, uneven=32)
    return _codes(128, 128, 128, 8, 4, per_unit=1, tma=tma, uneven=32)


def _wide_tiles(n: int, groups: int) -> bool:
    """Whether tiles of 128 columns of w, two programs a multiprocessor, read it in less time than three of 64 columns.

    Each tile reads its columns once, so what counts is for how long all multiprocessors read: the rounds of the tiles.
    On an H200 32 groups of 20 rows, n = 4096, took 260 us in four rounds of the wide ones, 267 in six of the others.
    """
    units = usual_units("sm_90")
    narrow, wide = (-(-groups * -(-n // width) // (units * programs)) for width, programs in ((64, 3), (128, 2)))
    return wide * 128 * 2 < narrow * 64 * 3


_TALL_ROW = 0.96
"""The time of a row in tiles of 192 rows over that in tiles of 128, on an H200 (8 groups of 4096 rows, k = 7168)."""

_LONG = 2048
"""The k from which that holds: at 1536 the rows of both take as long."""


def hopper_scaled(arch: Arch, features: Mapping[str, Any]) -> HopperGroupedConfig:
    """The same by the Gluon kernel, for groups of more rows than half a tile has."""
    few, rows = rows_of(features) <= 64, features.get("bucket(expected_m, 8)")
    if rows is None:
        rows = -(-features.get("bucket(m, 8)", 1) // max(1, features["groups"]))
    tall = _TALL_ROW * -(-rows // 192) * 192 < -(-rows // 128) * 128
    if tall and features["k"] >= _LONG:
        return HopperGroupedConfig(192, 128, 5, 3, scaled(arch, features), few=few)
    return HopperGroupedConfig(128, 128, 6, 2, scaled(arch, features), few=few)


_MANY = 4096
"""The rows of a group, on average, from which the sums of `backward` come by descriptors: with 8 groups of 4096 rows an
H200 took 5.85 ms for 6.31 in all, with 16 groups of 3763 rows 5.55 for 5.65. Where they are added to something, tiles
as wide spill.
"""


def backward(arch: Arch, features: Mapping[str, Any]) -> GroupedBackwardConfig:
    """16-bit `grouped_linear_backward`; grad_x reads the weights along n, of which descriptors take whole blocks.

    On an H200 with 8 groups of 4096 rows, n = 4096, k = 7168, 5.9 ms for 6.6 of pointers.
    """
    grad_x = grouped(arch, features)
    if grad_x.tma and features["n"] % grad_x.block_k == 0:
        grad_x = replace(grad_x, along=True)
    else:
        # Masks of rows that no block divides take registers.
        grad_x = replace(grad_x, tma=False, block_n=min(128, grad_x.block_n))
    if arch.name == "sm_90" and rows_of(features) >= _MANY:
        return GroupedBackwardConfig(grad_x=grad_x, grad_w=_tiles(128, 256, 64, 8, 3, tma=True))
    return GroupedBackwardConfig(grad_x=grad_x, grad_w=weight_grad(arch, features))


def backward_float32(arch: Arch, features: Mapping[str, Any]) -> GroupedBackwardConfig:
    """float32 `grouped_linear_backward`."""
    return GroupedBackwardConfig(grad_x=grouped_float32(arch, features), grad_w=weight_grad_float32(arch, features))


def weight_grad(arch: Arch, features: Mapping[str, Any]) -> GroupedConfig:
    """16-bit `grouped_weight_grad`."""
    if not arch.is_gpu:
        return _tiles(16, 16, 16, 1, 1)
    if arch.vendor == "amd":
        return _tiles(128, 128, 32, 8, 2, **({"matrix_instr_nonkdim": 16} if arch.name in CDNA else {}))
    if arch.name in ("sm_90", "sm_100", "sm_103"):
        # Few rows are bound by the sums they are added to: small tiles that load these first (on an H200 4.1 of the
        # 4.2 TB/s of a copy, with tiles of 128 x 128 2.6).
        rows = rows_of(features)
        if rows <= 32:
            return _tiles(64, 64, 32, 4, 2, early=True)
        if rows <= 128:
            return _tiles(64, 128, 32, 4, 3, early=True)
        return _tiles(128, 128, 64, 4, 3)
    return _tiles(128, 128, 32, 8, 3)


def weight_grad_float32(arch: Arch, features: Mapping[str, Any]) -> GroupedConfig:
    """float32 `grouped_weight_grad`."""
    return _floats(arch, 128)


def scaled_weight_grad(arch: Arch, features: Mapping[str, Any]) -> ScaledGroupedConfig:
    """`scaled_grouped_weight_grad`: a block of rows is one of a scale, or a part of it."""
    if not arch.is_gpu:
        return _codes(16, 16, 16, 1, 1)
    if arch.vendor == "amd":
        more: dict[str, Any] = {"matrix_instr_nonkdim": 16} if arch.name in CDNA else {}
        return _codes(64, 64, 64, 4, 2, **more)
    if shared_memory(arch.name) < 163 * 1024:
        return _codes(64, 64, 64, 4, 3)
    return _codes(128, 128, 128, 8, 3) if rows_of(features) > 32 else _codes(64, 64, 32, 4, 3)


def rows_of(features: Mapping[str, Any]) -> int:
    """How many rows a group has on average, up to the next power of two."""
    exponent: int = features.get("bucket(expected_m)", features.get("bucket(m)", 0))
    rows = 1 << max(0, exponent)
    if "bucket(expected_m)" in features:
        return rows
    groups: int = max(1, features["groups"])
    return 1 << (-(-rows // groups) - 1).bit_length()


def _halves(arch: Arch, rows: int) -> GroupedConfig:
    if not arch.is_gpu:
        return _tiles(16, 16, 16, 1, 1)
    height = min(128, max(16, rows))
    if arch.vendor == "amd":
        if arch.name not in CDNA:
            return _tiles(min(height, 64), 64, 32, 4, 2)
        more: dict[str, Any] = {"matrix_instr_nonkdim": 16}
        if height <= 64:
            return _tiles(height, 64, 64, 4, 2, uneven=32, **more)
        return _tiles(128, 128, 32, 8, 2, per_unit=1, uneven=32, **more)
    if shared_memory(arch.name) < 163 * 1024:
        return _tiles(min(height, 64), 64, 64, 4, 4) if height <= 64 else _tiles(128, 128, 32, 4, 3)
    tma = arch.name == "sm_90"
    if rows <= 16:
        return _tiles(16, 64, 128, 4, 5, tma=tma, uneven=32)
    if rows <= 32:
        return _tiles(32, 64, 128, 4, 4, tma=tma, uneven=32)
    if rows <= 64:
        return _tiles(64, 128, 64, 4, 4, tma=tma, uneven=32)
    if tma:
        return _tiles(128, 256, 64, 8, 4, per_unit=1, tma=True, uneven=32)
    return _tiles(128, 128, 32, 4, 4)


def _floats(arch: Arch, rows: int) -> GroupedConfig:
    """By fused multiply-adds, on CDNA by float32 matrix instructions."""
    if not arch.is_gpu:
        return _tiles(16, 16, 16, 1, 1)
    height = min(64, max(16, rows))
    if arch.name in CDNA:
        return _tiles(height, 64, 32, 4, 2, matrix_instr_nonkdim=16)
    return _tiles(height, 64, 16, 4 if height < 64 else 8, 3 if arch.vendor == "nvidia" else 2)


def _tiles(block_m: int, block_n: int, block_k: int, warps: int, stages: int, **more: Any) -> GroupedConfig:
    return GroupedConfig(block_m=block_m, block_n=block_n, block_k=block_k, num_warps=warps, num_stages=stages, **more)


def _codes(block_m: int, block_n: int, block_k: int, warps: int, stages: int, **more: Any) -> ScaledGroupedConfig:
    return ScaledGroupedConfig(
        block_m=block_m, block_n=block_n, block_k=block_k, num_warps=warps, num_stages=stages, **more
    )
