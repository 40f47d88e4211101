"""Model figures of the kernels, and of Triton's code of the same tile under the same model. Nothing of it is measured.

Run: ``python packages/plugins-asm/benchmarks/figures.py`` writes ``figures.md`` beside it. Needs opmux-emulator,
opmux-triton and ziglang.
"""

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from opmux_asm.kernels import ARCHS
from opmux_asm.kernels.operands import Operands
from opmux_asm.kernels.products import TILES, Product
from opmux_asm.kernels.recipes import Recipe
from opmux_asm.kernels.row_kernels import RowKernel
from opmux_asm.objects.toolchain import assemble
from opmux_asm.writer import Kernel, module
from opmux_emulator import Memory, Program, Report, launch
from opmux_emulator.triton_launches import argument_of
from opmux_triton.aot.build import compile_launch
from opmux_triton.gemm.configs import LinearConfig, TilesConfig
from opmux_triton.gemm.targets import linear
from opmux_triton.launch import recording

K_BYTES = 2048
HIDDEN, ROWS = 8192, 4
HEADER = """\
# Model figures

Made by `python packages/plugins-asm/benchmarks/figures.py`. Every number comes from the emulator: counts of what the
kernels execute, and its model of one SIMD, which knows neither caches nor clocks nor bandwidth beyond a compute unit.
**Nothing here was measured on a GPU.**
"""


def program_of(kernel: Kernel) -> Program:
    """A kernel, assembled."""
    return Program(assemble(module("k", kernel.arch, [kernel], "figures"), kernel.arch, kernel.name))


def product(arch: str, dtype: str, rows: int, columns: int) -> tuple[Kernel, Report]:
    """A launch of one workgroup."""
    operands = Operands(arch, dtype, "bf16" if dtype in ("fp8", "int8") else dtype)
    kernel, memory = Product("k", operands, rows, columns).write(), Memory()
    pointers = [
        memory.add(np.zeros(size, "u1"))
        for size in (rows * K_BYTES, columns * K_BYTES, 4 * columns, 2 * rows * columns, 4 * rows, 4 * columns)
    ]
    sizes = map(np.uint32, (rows, columns, K_BYTES // operands.bytes, K_BYTES, K_BYTES, 0))
    return kernel, launch(program_of(kernel), "k", (1,), (256,), [*pointers, *sizes], memory=memory, model=True)


def triton_product(arch: str, warps: int, block_k: int, stages: int) -> Report:
    """The Triton backend's kernel for the largest tile, compiled for an arch."""
    x, w = (torch.zeros(256, K_BYTES // 2, dtype=torch.bfloat16) for _ in range(2))
    tiles = TilesConfig(num_warps=warps, num_stages=stages, block_m=256, block_n=256, block_k=block_k)
    with recording(arch) as recorded:
        linear(x, w, None, config=LinearConfig(tiles=tiles))
    (one,) = recorded.launches
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled, values = compile_launch(one, arch)
    memory = Memory()
    arguments = [argument_of(value, memory) for value in values]
    return launch(
        Program(compiled.asm["hsaco"]), None, one.grid, (64 * warps,), arguments, memory=memory, model=True,
        dynamic_lds=compiled.metadata.shared,
    )  # fmt: skip


def share(report: Report) -> str:
    """The share of a loop in which the matrix unit works, and its cycles."""
    assert report.schedule is not None
    assert report.schedule.loop is not None
    loop = report.schedule.loop
    return f"{loop.mfma_utilisation:.3f} | {loop.cycles:.0f} | {loop.instructions.get('mfma', 0)}"


def loops() -> Iterator[str]:
    """The loops of every tile."""
    yield "\n## Loops of products\n"
    yield "One workgroup, `k` of 2048 bytes; cycles and matrix instructions are those of an iteration of a wave.\n"
    yield "| arch | x and w | tile | matrix unit busy | cycles | matrix instructions | registers | LDS | conflicts |"
    yield "|---|---|---|---|---|---|---|---|---|"
    cases = [("bf16", tile) for tile in TILES] + [(dtype, (256, 256)) for dtype in ("f16", "fp8", "int8")]
    for arch in ARCHS:
        for dtype, tile in cases:
            kernel, report = product(arch, dtype, *tile)
            registers = f"{kernel.files['v'].most} + {kernel.files['a'].most}"
            conflicts = report.counts.lds_conflict_cycles
            size = f"{tile[0]}x{tile[1]}"
            yield f"| {arch} | {dtype} | {size} | {share(report)} | {registers} | {kernel.lds} | {conflicts} |"


def peers() -> Iterator[str]:
    """The largest tile beside Triton's."""
    yield "\n## The same tile by Triton\n"
    yield "bfloat16, 256x256, compiled by the installed Triton from the kernel of `opmux-triton`, in several configs;"
    yield "the same model. With eight warps on gfx942 the other wave of a SIMD fills every gap.\n"
    yield "| arch | warps | k at a time | stages | matrix unit busy | cycles | matrix instructions | bank conflicts |"
    yield "|---|---|---|---|---|---|---|---|"
    for arch in ARCHS:
        for warps in (4, 8):
            for block_k, stages in ((32, 2), (64, 2)):
                try:
                    report = triton_product(arch, warps, block_k, stages)
                except Exception as error:  # a config that does not fit the arch
                    reason = " ".join(str(error).split())[:60]
                    yield f"| {arch} | {warps} | {block_k} | {stages} | refused: {reason} | | | |"
                    continue
                conflicts = report.counts.lds_conflict_cycles
                yield f"| {arch} | {warps} | {block_k} | {stages} | {share(report)} | {conflicts} |"


def rows() -> Iterator[str]:
    """Kernels of rows: what they move."""
    yield "\n## Kernels of rows\n"
    yield f"{ROWS} rows of {HIDDEN} bfloat16 columns, the tile of the heuristic. The least is each tensor once, a"
    yield "weight once a row.\n"
    yield "| op | arch | bytes over the least | bytes a request | instructions a wave | registers | waves a SIMD |"
    yield "|---|---|---|---|---|---|---|"
    cases = {
        "rms_norm": (Recipe("bf16", "bf16", norm="rms"), 2 + 2 + 2),
        "add_rms_norm": (Recipe("bf16", "bf16", adds=True, norm="rms"), 2 * 5),
        "layer_norm": (Recipe("bf16", "bf16", norm="layer"), 2 + 2 + 2),
        "silu_and_mul": (Recipe("bf16", gates=True), 2 * 3),
        "quantize": (Recipe("bf16", codes="fp8", block="block"), 2 + 1 + 4 / 128),
        "rms_norm_quantize": (Recipe("bf16", "bf16", norm="rms", codes="fp8", block="token"), 2 + 2 + 1),
        "silu_and_mul_quantize": (Recipe("bf16", gates=True, codes="fp8", block="block"), 4 + 1 + 4 / 128),
    }
    for name, (recipe, least) in cases.items():
        for arch in ARCHS:
            kernel = RowKernel(arch, name, recipe, 4, 4).write()
            memory = Memory()
            pointers = [memory.add(np.ones(8 * ROWS * HIDDEN, "u1")) for _ in range(7)]
            sizes = map(np.uint32, (2 * HIDDEN * (1 + recipe.gates), 2 * HIDDEN, HIDDEN))
            numbers = map(np.float32, (1 / HIDDEN, 1e-6, 0.0))
            report = launch(
                program_of(kernel), kernel.name, (ROWS,), (256,), [*pointers, *sizes, *numbers], memory=memory
            )
            counts = report.counts
            over = counts.memory_bytes / (least * ROWS * HIDDEN)
            waves = counts.total // (4 * ROWS)
            registers = kernel.files["v"].most
            yield (
                f"| `{name}` | {arch} | {over:.3f} | {counts.bytes_per_request:.0f} | {waves} | {registers} | "
                f"{counts.waves_per_simd} |"
            )


def main() -> None:
    """Write the page."""
    lines = [HEADER.rstrip(), *loops(), *peers(), *rows()]
    Path(__file__).with_name("figures.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
