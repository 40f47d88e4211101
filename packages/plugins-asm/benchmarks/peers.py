"""AITER's hand-written loops beside those of the same kind here, under the same model.

The code objects come from the wheel that `packages/emulator/foreign` fetches and checks; nothing of it is committed.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import launches
import numpy as np

from opmux_emulator import Program, Report, launch

FOREIGN = Path(__file__).parents[2] / "emulator" / "foreign"
sys.path.append(str(FOREIGN))

import attention  # noqa: E402
import products  # noqa: E402
import wheel  # noqa: E402
from case import TURN  # noqa: E402


@dataclass(frozen=True)
class Pace:
    """What doubling the work adds: the share of that time in which the matrix unit works, and a compute unit's cycles.

    Attributes:
        busy: share of the matrix unit.
        cycles: of a compute unit for the added work of one workgroup, those that fit at once taken together.
        conflicts: cycles of LDS bank conflicts that were added.
    """

    busy: float
    cycles: float
    conflicts: int


def pace(run: Callable[[int], Report], work: int, waves: int = 4) -> Pace:
    """From runs of ``work`` and of twice as much; ``waves`` are those of a workgroup."""
    once, twice = run(work), run(2 * work)
    assert once.schedule is not None
    assert twice.schedule is not None
    added = twice.schedule.cycles - once.schedule.cycles
    busy = (
        twice.schedule.cycles * twice.schedule.mfma_utilisation - once.schedule.cycles * once.schedule.mfma_utilisation
    )
    groups = 4 * once.schedule.waves / waves
    conflicts = twice.counts.lds_conflict_cycles - once.counts.lds_conflict_cycles
    return Pace(busy / added, added / groups, conflicts)


def foreign(arch: str, file: str, make: Callable[[int], Callable[[Any], Any]], threads: int = 256
) -> Callable[[int], Report]:  # fmt: skip
    """A launch of one workgroup of a code object, by its amount of work."""

    def run(work: int) -> Report:
        program = Program.load(wheel.folder() / arch / file)
        made = make(work)(np.random.default_rng(0))
        segment = made.slots.segment(program.kernel().kernarg_size)
        return launch(
            program, None, (1, 1, 1), (threads,), segment, memory=made.slots.memory, check=False, turn=TURN, model=True
        )

    return run


@dataclass(frozen=True)
class Pair:
    """A program of AITER's, and what stands beside it.

    Attributes:
        kind: what both compute.
        arch: gfx942 or gfx950.
        file: the code object.
        theirs, ours: launches by the amount of work, of which both do equally much for a tile.
        tiles: sizes of the tiles, theirs and ours.
        work: k, or keys.
        waves: of their workgroup.
    """

    kind: str
    arch: str
    file: str
    theirs: Callable[[int], Report]
    ours: Callable[[int], Report]
    tiles: str
    work: int
    waves: int = 4


def pairs() -> Iterator[Pair]:
    """Every comparison."""
    for arch in ("gfx942", "gfx950"):
        file = "bf16gemm/bf16gemm_outf32_tn_64x64_pf3.co"
        yield Pair(
            "bf16 product", arch, file, foreign(arch, file, lambda k: products.bf16_product(64, 64, k)),
            lambda k, arch=arch: launches.product(arch, "bf16", 256, 256, 2 * k)[1], "64x64, 256x256", 1024,
        )  # fmt: skip
    for rows, tile in ((128, 128), (192, 256)):
        file = f"i8gemm/I8gemm_bf16_perTokenI8_BpreShuffle_{rows}x128.co"
        yield Pair(
            "int8 product", "gfx942", file,
            foreign("gfx942", file, lambda k, rows=rows: products.int8_product(rows, 128, k)),
            lambda k, tile=tile: launches.product("gfx942", "int8", tile, tile, k)[1], f"{rows}x128, {tile}x{tile}",
            2048,
        )  # fmt: skip
    file = "f8_block_scale_mi350_x128.co"
    yield Pair(
        "fp8 product, scales of blocks", "gfx950", file,
        foreign("gfx950", file, lambda k: products.fp8_block_product(128, 128, k)),
        lambda k: launches.product("gfx950", "fp8", 128, 128, k, blocks=True)[1], "128x128, 128x128", 2048,
    )  # fmt: skip
    for arch, file in (
        ("gfx942", "fmha_v3_fwd/MI300/fwd_hd128_bf16_rtne.co"), ("gfx950", "fmha_v3_fwd/fwd_hd128_bf16.co")
    ):  # fmt: skip
        yield Pair(
            "attention, heads of 128", arch, file,
            foreign(arch, file, lambda keys: attention.dense(1, 1, 1, 256, keys, False), 512),
            lambda keys, arch=arch: launches.attention(arch, keys)[1], "256 queries, 128", 512, 8,
        )  # fmt: skip
    for arch, kind, name in (("gfx942", "bf16", "noquant_gqa8_1tg"), ("gfx950", "bf16", "noquant_gqa8_1tg"),
                             ("gfx942", "fp8", "pertokenFp8_gqa8_2tg")):  # fmt: skip
        file, cache = f"pa/pa_bf16_{name}_4w.co", "" if kind == "bf16" else kind
        yield Pair(
            f"paged attention, {kind} cache", arch, file,
            foreign(arch, file, lambda keys, kind=kind: attention.paged(1, 1, 8, [keys], kind)),
            lambda keys, arch=arch, cache=cache: launches.paged(arch, cache, keys, 8)[1], "8 queries, 8", 1024,
        )  # fmt: skip


def table() -> Iterator[str]:
    """The comparison."""
    yield "\n## Beside AITER's hand-written loops\n"
    yield f"Code objects of `{wheel.NAME}=={wheel.VERSION}`. Each kernel ran with `k` (or keys) as given and with twice"
    yield "as much; the columns are of what that adds. Busy is the share of that time in which the matrix unit works."
    yield "Cycles are a compute unit's for the added work of a workgroup, when as many run as fit; the last column"
    yield "compares them for equal work, and is above 1 where the kernel here takes less. With an fp8 cache, AITER's"
    yield "kernel multiplies fp8 by fp8, so it rounds queries and shares to 8 bits; the op does not round queries, and"
    yield "here codes are converted to 16 bits first.\n"
    yield (
        "| computes | arch | AITER's | tiles, AITER's and here | k or keys | busy | busy here | cycles | cycles here |"
        " cycles, AITER's over here |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for pair in pairs():
        theirs, ours = pace(pair.theirs, pair.work, pair.waves), pace(pair.ours, pair.work)
        ratio = size_of(pair) * theirs.cycles / ours.cycles
        yield (
            f"| {pair.kind} | {pair.arch} | `{Path(pair.file).name}` | {pair.tiles} | {pair.work} | {theirs.busy:.3f} "
            f"| {ours.busy:.3f} | {theirs.cycles:.0f} | {ours.cycles:.0f} | {ratio:.2f} |"
        )


def size_of(pair: Pair) -> float:
    """How much larger a workgroup's tile is here than AITER's."""
    theirs, ours = pair.tiles.replace(" queries", "").split(", ")

    def size(text: str) -> int:
        return int(np.prod([int(part) for part in text.split("x")]))

    return size(ours) / size(theirs)
