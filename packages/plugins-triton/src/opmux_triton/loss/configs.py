"""Launch parameters of the losses, per arch. Loads no Triton."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opmux.plugin import Arch
from opmux_triton.archs import lanes_of_rows, shared_memory
from opmux_triton.arithmetic import next_power_of_two
from opmux_triton.compiler_options import CompilerOptions
from opmux_triton.config_checks import require_at_least, require_powers_of_two


@dataclass(frozen=True)
class RowsConfig:
    """Launch parameters of the kernels that walk over the logits of a token.

    Attributes:
        block: logits at a time.
        num_warps: warps of a program.
    """

    block: int
    num_warps: int

    def __post_init__(self) -> None:
        require_powers_of_two(self, "block", "num_warps")


@dataclass(frozen=True)
class ProductConfig(CompilerOptions):
    """Tiles of the product that is the gradient of the weight.

    Attributes:
        block_m: classes of a tile.
        block_n: columns of a tile.
        block_k: tokens at a time.
        group: rows of tiles that are walked together.
    """

    block_m: int
    block_n: int
    block_k: int
    group: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        require_powers_of_two(self, "block_m", "block_n", "block_k")
        require_at_least(16, self, "block_m", "block_n", "block_k")
        require_at_least(1, self, "group")


@dataclass(frozen=True)
class FusedConfig:
    """How a linear layer's loss is cut into chunks of tokens, and the launch parameters for one.

    Attributes:
        parts: how many chunks there are at least, so that the logits are never whole in memory.
        least: tokens of a chunk at least: with fewer, products take their time to read the weight.
        mebibytes: the logits of a chunk take this much memory at most, unless ``least`` tokens take more.
        rows: the kernels that walk over the logits of a token.
        product: the gradient of the weight.
        by_blas: whether cuBLAS computes it where it can: on NVIDIA GPUs, for 16-bit rows.
    """

    parts: int
    least: int
    mebibytes: int
    rows: RowsConfig
    product: ProductConfig
    by_blas: bool = False

    def __post_init__(self) -> None:
        require_at_least(1, self, "parts", "least", "mebibytes")

    def tokens(self, tokens: int, vocab: int, itemsize: int) -> int:
        """The tokens of a chunk, of ``tokens`` in all: multiples of 128 where there are so many."""
        fitting = (self.mebibytes << 20) // (vocab * itemsize)
        wanted = max(self.least, min(-(-tokens // self.parts), fitting))
        chunks = -(-tokens // max(1, wanted))
        even = -(-tokens // max(1, chunks))
        return max(1, min(tokens, -(-even // 128) * 128))


def rows_config(arch: Arch, features: Mapping[str, Any]) -> RowsConfig:
    """A program for each token: 16 logits for each lane at a time, so that loads hide behind exponentials."""
    lanes = lanes_of_rows(arch)
    block = min(4096 if arch.vendor == "amd" else 8192, max(lanes, next_power_of_two(max(1, features["vocab"]))))
    return RowsConfig(block, min(16, max(1, block // (16 * lanes))))


def gradient_config(arch: Arch, features: Mapping[str, Any]) -> RowsConfig:
    """A program for each block of a token's logits."""
    lanes = lanes_of_rows(arch)
    block = min(2048, max(lanes, next_power_of_two(max(1, features["vocab"]))))
    return RowsConfig(block, min(8, max(1, block // (8 * lanes))))


def fused_config(arch: Arch, features: Mapping[str, Any]) -> FusedConfig:
    """Four chunks or more, of at most 512 MiB of logits each; on sm_90 cuBLAS sums the gradient of the weight."""
    by_blas = arch.name == "sm_90"
    return FusedConfig(4, 256, 512, rows_config(arch, features), _product(arch, features), by_blas)


def fused_float32_config(arch: Arch, features: Mapping[str, Any]) -> FusedConfig:
    """As `fused_config`, with the smaller tiles of products in full float32."""
    rows = rows_config(arch, features)
    return FusedConfig(4, 256, 512, rows, ProductConfig(num_warps=4, num_stages=2, block_m=64, block_n=64, block_k=16))


def _product(arch: Arch, features: Mapping[str, Any]) -> ProductConfig:
    """Large tiles, as there are many classes; smaller ones where the vocabulary or the layer is small."""
    if features["vocab"] <= 1024 or features["hidden"] <= 64:
        return ProductConfig(num_warps=4, num_stages=2, block_m=64, block_n=64, block_k=32)
    if arch.vendor == "amd":
        return ProductConfig(num_warps=8, num_stages=2, block_m=256, block_n=128, block_k=32, matrix_instr_nonkdim=16)
    if shared_memory(arch.name) >= 160 * 1024:
        return ProductConfig(num_warps=8, num_stages=3, block_m=128, block_n=256, block_k=64)
    return ProductConfig(num_warps=8, num_stages=3, block_m=128, block_n=128, block_k=32)
