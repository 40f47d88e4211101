"""Model figures of the kernels, and of Triton's, CK's and AITER's code under the same model. Nothing is measured.

Run: ``python packages/plugins-asm/benchmarks/figures.py`` writes ``figures.md`` beside it. Needs opmux-emulator,
opmux-triton, opmux-ck and ziglang; fetches AITER's wheel (40 MB), which also has CK, once for each of both.
"""

from collections.abc import Iterator
from pathlib import Path

import launches
import numpy as np
import peers
import same_tiles
from launches import product, program_of

from opmux_asm.kernels import ARCHS
from opmux_asm.kernels.block_products import TILES as BLOCK_TILES
from opmux_asm.kernels.products import TILES
from opmux_asm.kernels.recipes import Recipe
from opmux_asm.kernels.row_kernels import RowKernel
from opmux_emulator import Memory, Report, launch

K_BYTES = 2048
HIDDEN, ROWS = 8192, 4
HEADS = 32
LINE = 128
BLOCKS = "fp8, scales of blocks"
HEADER = """\
# Model figures

Made by `python packages/plugins-asm/benchmarks/figures.py`. Every number comes from the emulator: counts of what the
kernels execute, and its model of one SIMD, which knows neither caches nor clocks nor bandwidth beyond a compute unit.
**Nothing here was measured on a GPU.**
"""


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
    cases += [(BLOCKS, tile) for tile in BLOCK_TILES]
    for arch in ARCHS:
        for dtype, tile in cases:
            kernel, report = product(arch, dtype.split(",")[0], *tile, K_BYTES, blocks=dtype == BLOCKS)
            registers = f"{kernel.files['v'].most} + {kernel.files['a'].most}"
            conflicts = report.counts.lds_conflict_cycles
            size = f"{tile[0]}x{tile[1]}"
            yield f"| {arch} | {dtype} | {size} | {share(report)} | {registers} | {kernel.lds} | {conflicts} |"


def attention() -> Iterator[str]:
    """The loops of attention, and what they read."""
    yield "\n## Attention\n"
    yield "One workgroup: 128 queries, or 8 that share a kv head and pages of 16; heads of 128, bfloat16 queries. What"
    yield "1024 further keys add: the share of that time in which the matrix unit works, and a compute unit's cycles"
    yield "for a key, when as many workgroups run as fit. A compute unit reads 64 bytes a cycle, so a key and its value"
    yield "take at least 8 cycles in bfloat16 and 4 in fp8.\n"
    yield "| op | arch | cache | matrix unit busy | cycles a key | registers | waves a SIMD | LDS | conflicts |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for arch in ARCHS:
        runs = {("attention", ""): lambda keys, arch=arch: launches.attention(arch, keys)}
        for cache in ("", "fp8"):
            runs["paged_attention", cache] = lambda keys, arch=arch, cache=cache: launches.paged(arch, cache, keys, 8)
        for (op, cache), made in runs.items():
            kernel, report = made(16)
            found = peers.pace(lambda keys, made=made: made(keys)[1], 1024)
            yield (
                f"| `{op}` | {arch} | {cache or 'bf16'} | {found.busy:.3f} | {found.cycles / 1024:.2f} | "
                f"{kernel.files['v'].most} | {report.counts.waves_per_simd} | {kernel.lds} | {found.conflicts} |"
            )


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
        "add_rms_norm_quantize": (Recipe("bf16", "bf16", adds=True, norm="rms", codes="fp8", block="token"), 2 * 4 + 1),
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


def heads() -> Iterator[str]:
    """Kernels of a token's heads: what they move."""
    yield "\n## Kernels of heads\n"
    yield f"{ROWS} tokens with {HEADS} query heads and as many key heads of {launches.HEAD}, bfloat16. Bytes are of"
    yield "whole lines of 128, counted for each access by itself. The least is each tensor once, and for each token a"
    yield "row of both tables: every wave of `apply_rope` reads that row, which only the first has to fetch from"
    yield "memory.\n"
    yield "| op | arch | bytes over the least | bytes a request | registers | waves a SIMD |"
    yield "|---|---|---|---|---|---|"
    for arch in ARCHS:
        runs = {
            "`apply_rope`, halves": launches.rotation(arch, ROWS, HEADS, interleaved=False),
            "`apply_rope`, neighbours": launches.rotation(arch, ROWS, HEADS, interleaved=True),
            "`write_kv_cache`, keys": launches.cache_write(arch, ROWS, HEADS),
        }
        for name, (kernel, report, least) in runs.items():
            counts = report.counts
            yield (
                f"| {name} | {arch} | {LINE * counts.memory_lines / least:.3f} | {counts.bytes_per_request:.0f} | "
                f"{kernel.files['v'].most} | {counts.waves_per_simd} |"
            )


def main() -> None:
    """Write the page."""
    lines = [HEADER.rstrip(), *loops(), *same_tiles.table(), *peers.table(), *attention(), *rows(), *heads()]
    Path(__file__).with_name("figures.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
