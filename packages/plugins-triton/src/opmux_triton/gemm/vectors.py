"""Launch parameters of a linear layer's kernels without matrix instructions. Loads no Triton."""

from opmux.plugin import Arch
from opmux_triton.archs import CDNA, usual_units
from opmux_triton.arithmetic import next_power_of_two
from opmux_triton.gemm.configs import ColumnsConfig, TilesConfig, VectorConfig, VectorsConfig

_SMALL = 1 << 22
"""Elements of a weight that three and four rows without matrix instructions are measured to be fast with."""


def vector(arch: Arch, n: int, k: int, otherwise: TilesConfig | None = None) -> VectorConfig:
    """One row: as many bytes under way as there can be, and 16 of them to a thread's load."""
    if not arch.is_gpu:
        return VectorConfig(rows=4, block_k=16, num_warps=1, otherwise=otherwise)
    block_k, rows = 1024 if arch.vendor == "amd" else 512, 8
    if arch.name == "sm_90" and k >= 4096:
        block_k, rows = 4096 if k >= 8192 else 2048, 1
    while rows > 1 and n < rows * 4 * usual_units(arch.name):
        rows //= 2
        block_k = min(2048, block_k * 2) if arch.name == "sm_90" else block_k
    block_k = min(block_k, max(128, next_power_of_two(k)))
    lanes = 64 if arch.name in CDNA else 32
    warps = max(1, min(4, rows * block_k // (lanes * 8)))
    return VectorConfig(rows=rows, block_k=block_k, num_warps=warps, otherwise=otherwise)


def vectors(arch: Arch, m: int, n: int, k: int, otherwise: TilesConfig) -> VectorsConfig | None:
    """Up to four rows in 16 bits, where no tiles were measured to be faster; None elsewhere.

    A thread's load has 16 bytes, and a block is what all threads load at once. On an H200 two rows took 0.83 to 0.97
    times as long as by the tiles at five shapes. Where all tiles of 64 rows of the weight are resident at once, in two
    programs a multiprocessor, those were as fast or faster (1.03 times at 14336 x 1024); so were they for three rows
    and more of a large weight.
    """
    if not arch.is_gpu:
        return VectorsConfig(rows=2, block_k=16, blocks=2, num_warps=1, otherwise=otherwise) if m == 2 else None
    if arch.name != "sm_90" or m > 4 or -(-n // 64) > usual_units(arch.name):
        return None
    if m > 2 and n * k > _SMALL:
        return None
    if k < 2048:
        rows, blocks, warps = (4, 1, 1) if m == 2 and n >= 4096 else (2, 2, 1)
    else:  # bytes under way: few programs read two rows each, by four warps
        rows, blocks, warps = (1, 4, 1) if n >= 16 * usual_units(arch.name) else (2, 2, 4)
    return vectors_of(rows, blocks, warps, otherwise)


def vectors_of(rows: int, blocks: int, warps: int, otherwise: TilesConfig) -> VectorsConfig:
    """16 bytes of a 16-bit row to a thread of a program."""
    return VectorsConfig(rows=rows, block_k=256 * warps, blocks=blocks, num_warps=warps, otherwise=otherwise)


def columns(arch: Arch) -> ColumnsConfig:
    """Sums of columns."""
    if not arch.is_gpu:
        return ColumnsConfig(rows=8, block=16, waves=1, num_warps=1)
    return ColumnsConfig(rows=32, block=128, waves=4, num_warps=4)
