"""Which launch parameters a scaled product gets on an arch. Functions of the declared features; loads no Triton."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from opmux.plugin import Arch
from opmux_triton.archs import CDNA, fp8_flavour, shared_memory, usual_units
from opmux_triton.arithmetic import padded
from opmux_triton.scaled_gemm.configs import ScaledConfig

_MOST_PARTS = 16
_LEAST_BLOCKS = 4
"""Blocks of k of a part, at least: less would not fill the pipeline."""


def scaled_linear(arch: Arch, features: Mapping[str, Any]) -> ScaledConfig:
    """`scaled_linear` of 8-bit floats in the OCP flavour."""
    return tiles(arch, *sizes(features), native=fp8_flavour(arch) == "ocp")


def scaled_linear_fnuz(arch: Arch, features: Mapping[str, Any]) -> ScaledConfig:
    """`scaled_linear` of 8-bit floats in the fnuz flavour."""
    return tiles(arch, *sizes(features), native=fp8_flavour(arch) == "fnuz")


def scaled_linear_int8(arch: Arch, features: Mapping[str, Any]) -> ScaledConfig:
    """`scaled_linear` of int8."""
    m, n, k = sizes(features)
    if arch.name == "sm_90":
        return _int8_on_hopper(arch, m, n, k, blockwise=features["k_blocks"] > 1)
    return tiles(arch, m, n, k, native=True)


def sizes(features: Mapping[str, Any]) -> tuple[int, int, int]:
    """The (m, n, k) of a product: the rows of all matrices together, rounded up to a power of two."""
    return 1 << features["bucket(m)"] + features.get("bucket(batch)", 0), features["n"], features["k"]


def tiles(arch: Arch, m: int, n: int, k: int, *, native: bool) -> ScaledConfig:
    """The tile of a product; ``native``: whether the matrix units take the codes, or float16 made of them."""
    if not arch.is_gpu:
        return ScaledConfig(
            block_m=16, block_n=16, block_k=32, swap=m <= 4, group=2, parts=2 if k >= 96 else 1, num_warps=1,
            num_stages=1,
        )  # fmt: skip
    depth = 128 if native else 64
    options: dict[str, Any] = {"num_warps": 4, "num_stages": _stages(arch, native)}
    if arch.vendor == "amd":
        options["xcds"] = 8 if arch.name in ("gfx942", "gfx950") else 1
        if arch.name in CDNA:
            options["matrix_instr_nonkdim"] = 16
    if m <= 64:
        return _few(arch, padded(m), n, k, depth, options)
    side = 128 if native and arch.name not in ("sm_86", "sm_89", "sm_120", "sm_121") else 64
    if -(-m // side) * -(-n // side) < usual_units(arch.name) and side > 64:
        side = 64
    if side == 128:
        options["num_warps"] = 8
    return ScaledConfig(block_m=side, block_n=side, block_k=depth, **options)


_LONG = 4096
"""The k from which parts of int8 products are worth an uneven last round of programs."""


def _int8_on_hopper(arch: Arch, m: int, n: int, k: int, *, blockwise: bool) -> ScaledConfig:
    """By tuning of 32 drawn products on an H200: 1.29 and 1.30 times as fast at 2393 and 8809 rows as one tile for all.

    Two programs of 128x128 with four warps share a multiprocessor; scales of blocks, and rows that do not lie in
    vectors of 16, take registers that these do not have. Between 64 and 1024 rows tiles of 64 rows are the faster
    ones, as wide as still gives each multiprocessor one. In parts of k programs are as many as two on each.
    """
    units = usual_units(arch.name)
    few = tiles(arch, m, n, k, native=True)
    if m <= 64:
        if few.block_n == 64 and k >= _LONG:
            return replace(few, parts=min(-(-2 * units // -(-n // 64)), -(-k // 128) // _LEAST_BLOCKS, _MOST_PARTS))
        return few
    for height, width in ((128, 128), (64, 128), (64, 64), (64, 32)):
        enough = -(-m // height) * -(-n // width) >= 0.9 * units
        if (enough and (height == 64 or m > 1024)) or width == 32:
            break
    if height == 64:
        return replace(few, block_m=64, block_n=width, num_warps=4, num_stages=4)
    tight = blockwise or k % 16 != 0
    return replace(few, block_m=128, block_n=128, num_warps=8 if tight else 4, num_stages=4 if tight else 3)


def _few(arch: Arch, height: int, n: int, k: int, depth: int, options: dict[str, Any]) -> ScaledConfig:
    """Few rows: the weight is read once, by enough programs to keep memory busy."""
    tiles = -(-n // 64)
    wanted = max(1, 2 * usual_units(arch.name) // tiles)
    most = max(1, -(-k // depth) // _LEAST_BLOCKS)
    swap = arch.vendor == "nvidia"
    if arch.name == "sm_90" and depth == 128 and height <= 16 and n >= 128 * usual_units(arch.name):
        # A tile of 128 rows of the weight for each multiprocessor: 1.00 to 1.11 times as fast as two of 64 (H200).
        return ScaledConfig(block_m=height, block_n=128, block_k=depth, swap=swap, num_warps=8, num_stages=5)
    return ScaledConfig(
        block_m=height, block_n=64, block_k=depth, swap=swap, parts=min(wanted, most, _MOST_PARTS), **options
    )


def _stages(arch: Arch, native: bool) -> int:
    if arch.vendor == "amd":
        return 2
    if not native:
        return 2
    return 4 if shared_memory(arch.name) > 160 * 1024 else 3
