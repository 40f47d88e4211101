"""The goldens: one kernel of each kind as the writer emits it. ``python tests/goldens/writing.py`` writes them."""

from pathlib import Path

from opmux_asm.kernels import ARCHS
from opmux_asm.kernels.attention import Attention
from opmux_asm.kernels.block_products import BlockProduct
from opmux_asm.kernels.operands import Operands
from opmux_asm.kernels.paged_decode import Decode
from opmux_asm.kernels.products import Product
from opmux_asm.kernels.recipes import Recipe
from opmux_asm.kernels.row_kernels import RowKernel
from opmux_asm.writer import Kernel, module

FOLDER = Path(__file__).parent


def shown(arch: str) -> dict[str, Kernel]:
    """A kernel of each kind, small enough to read."""
    quantised = Recipe("bf16", gates=True, codes="fp8", block="block")
    return {
        "rms_norm": RowKernel(arch, "rms_norm", Recipe("bf16", "bf16", norm="rms"), 4, 1).write(),
        "linear": Product("linear_bf16_64x64", Operands(arch, "bf16", "bf16"), 64, 64).write(),
        "scaled_linear_blocks": BlockProduct(
            "scaled_linear_blocks_fp8_64x64", Operands(arch, "fp8", "bf16"), 64, 64
        ).write(),
        "paged_attention": Decode(arch, "bf16", "fp8").write(),
        "attention": Attention("attention_bf16", arch, "bf16").write(),
        "silu_and_mul_quantize": RowKernel(arch, "silu_and_mul_quantize", quantised, 1, 1).write(),
    }


def texts() -> dict[str, str]:
    """Name of a golden -> its text."""
    return {
        f"{family}.{arch}.s": module(family, arch, [kernel], "golden")
        for arch in ARCHS
        for family, kernel in shown(arch).items()
    }


if __name__ == "__main__":
    for name, text in texts().items():
        (FOLDER / name).write_text(text)
