"""Launch parameters of a linear layer's kernels without matrix instructions. Loads no Triton."""

from opmux.plugin import Arch
from opmux_triton.archs import CDNA, usual_units
from opmux_triton.arithmetic import next_power_of_two
from opmux_triton.gemm.configs import ColumnsConfig, VectorConfig


def vector(arch: Arch, n: int, k: int) -> VectorConfig:
    """One row: as many bytes under way as there can be, and 16 of them to a thread's load."""
    if not arch.is_gpu:
        return VectorConfig(rows=4, block_k=16, num_warps=1)
    block_k, rows = 1024 if arch.vendor == "amd" else 512, 8
    if arch.name == "sm_90" and k >= 4096:
        block_k, rows = 4096 if k >= 8192 else 2048, 1
    while rows > 1 and n < rows * 4 * usual_units(arch.name):
        rows //= 2
        block_k = min(2048, block_k * 2) if arch.name == "sm_90" else block_k
    block_k = min(block_k, max(128, next_power_of_two(k)))
    lanes = 64 if arch.name in CDNA else 32
    warps = max(1, min(4, rows * block_k // (lanes * 8)))
    return VectorConfig(rows=rows, block_k=block_k, num_warps=warps)


def columns(arch: Arch) -> ColumnsConfig:
    """Sums of columns."""
    if not arch.is_gpu:
        return ColumnsConfig(rows=8, block=16, waves=1, num_warps=1)
    return ColumnsConfig(rows=32, block=128, waves=4, num_warps=4)
