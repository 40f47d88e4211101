"""Loops of products by Triton and by Composable Kernel (CK) beside those of the same tile here, under the same model.

CK's instances are those of `opmux-ck`, which compiles them (half a minute to two minutes each, once) with ziglang's
clang from the sources in the wheel that `packages/plugins-ck/with_ck` fetches and checks; nothing of it is committed.
"""

import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import launches
import msgpack
import numpy as np
import torch

from opmux_asm.kernels import ARCHS
from opmux_emulator import Latencies, Memory, Program, Report, launch
from opmux_emulator.codeobject.elf import read_elf
from opmux_emulator.triton_launches import argument_of
from opmux_triton.aot.build import compile_launch
from opmux_triton.gemm.configs import LinearConfig, TilesConfig
from opmux_triton.gemm.targets import linear
from opmux_triton.launch import recording
from opmux_triton.scaled_gemm.configs import ScaledConfig
from opmux_triton.scaled_gemm.targets import scaled_linear

sys.path.append(str(Path(__file__).parents[2] / "plugins-ck" / "with_ck"))

from fetching import fetched

os.environ.setdefault("OPMUX_CK_DIR", str(fetched()))

from opmux_ck.building.instances import code_of
from opmux_ck.gemm.configs import CodesConfig, GemmConfig, loops
from opmux_ck.gemm.instances import Product

K_BYTES = 2048
FP8 = {"gfx942": torch.float8_e4m3fnuz, "gfx950": torch.float8_e4m3fn}
Model = bool | Latencies


@dataclass(frozen=True)
class Peer:
    """A kernel of others.

    Attributes:
        arch: gfx942 or gfx950.
        dtype: of x and w, as the kernels here name it.
        tile: rows of x and of w of a workgroup.
        by: who made it.
        waves: of a workgroup.
        how: its further sizes.
        make: gives its code object and a launch of one workgroup under a model.
    """

    arch: str
    dtype: str
    tile: tuple[int, int]
    by: str
    waves: int
    how: str
    make: Callable[[], tuple[bytes, Callable[[Model], Report]]]


@functools.cache
def made(peer: Peer) -> tuple[bytes, Callable[[Model], Report]]:
    """A peer, compiled once."""
    return peer.make()


def spilled(code: bytes) -> int:
    """Vector registers that a code object's one kernel spills to scratch memory."""
    (note,) = (data for owner, _, data in read_elf(code).notes if owner == "AMDGPU")
    (kernel,) = msgpack.unpackb(note)["amdhsa.kernels"]
    return int(kernel[".vgpr_spill_count"])


def by_triton(arch: str, dtype: str, rows: int, columns: int, k: int, warps: int) -> Peer:
    """A kernel of `opmux-triton`, compiled by the installed Triton with two stages."""

    def make() -> tuple[bytes, Callable[[Model], Report]]:
        with recording(arch) as recorded:
            if dtype == "bf16":
                x, w = (torch.zeros(size, K_BYTES // 2, dtype=torch.bfloat16) for size in (rows, columns))
                tiles = TilesConfig(num_warps=warps, num_stages=2, block_m=rows, block_n=columns, block_k=k)
                linear(x, w, None, config=LinearConfig(tiles=tiles))
            else:
                of = FP8[arch] if dtype == "fp8" else torch.int8
                x, w = (torch.zeros(size, K_BYTES, dtype=of) for size in (rows, columns))
                x_scale, w_scale = (torch.ones(size, 1) for size in (rows, columns))
                config = ScaledConfig(num_warps=warps, num_stages=2, block_m=rows, block_n=columns, block_k=k)
                scaled_linear(x, w, x_scale, w_scale, None, out_dtype=torch.bfloat16, config=config)
        (one,) = recorded.launches
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled, values = compile_launch(one, arch)
        code = compiled.asm["hsaco"]

        def run(model: Model) -> Report:
            memory = Memory()
            arguments = [argument_of(value, memory) for value in values]
            return launch(
                Program(code), None, one.grid, (64 * warps,), arguments, memory=memory, model=model,
                dynamic_lds=compiled.metadata.shared, check=False,
            )  # fmt: skip

        return code, run

    return Peer(arch, dtype, (rows, columns), "Triton", warps, f"k {k}", make)


class Crowded(GemmConfig):
    """A tile with 256 sums a thread, as in CK's own examples. The backend's rules leave it out, since clang spills."""

    def __post_init__(self) -> None:
        """No rule is applied."""


class CrowdedCodes(CodesConfig):
    """The same of codes."""

    def __post_init__(self) -> None:
        """No rule is applied."""


def by_ck(
    arch: str, dtype: str, rows: int, columns: int, k: int, waves: tuple[int, int] = (2, 2), pipeline: str = "v3"
) -> Peer:
    """An instance of CK with matrix instructions of 32x32."""

    def make() -> tuple[bytes, Callable[[Model], Report]]:
        crowded = rows * columns > 128 * 64 * waves[0] * waves[1]
        kind = {(False, "bf16"): GemmConfig, (True, "bf16"): Crowded}.get((crowded, dtype)) or (
            CrowdedCodes if crowded else CodesConfig
        )
        config = kind(rows, columns, k, *waves, 32, 16, pipeline, pads_n=False, pads_k=False)
        count = K_BYTES // config.element_bytes
        instance = Product(dtype, "bf16", config, loops(config, count))
        code = code_of(instance, arch).code

        def run(model: Model) -> Report:
            memory = Memory()
            x, w, out = (memory.add(np.zeros(n, "u1")) for n in (rows * K_BYTES, columns * K_BYTES, 2 * rows * columns))
            scales = [memory.add(np.ones(size, "f4")) for size in (rows, columns)]
            tensors = [x, w, out, out] if dtype == "bf16" else [x, w, *scales, out]
            numbers = map(np.int32, (rows, columns, count, count, count, columns, 1, rows))
            return launch(
                Program(code), instance.kernel, (1, 1, 1), (config.threads,), [*tensors, *numbers], memory=memory,
                model=model, check=False,
            )  # fmt: skip

        return code, run

    return Peer(arch, dtype, (rows, columns), "CK", waves[0] * waves[1], f"k {k}, `{pipeline}`", make)


def peers() -> Iterator[Peer]:
    """Every comparison."""
    for arch in ARCHS:
        for warps in (4, 8):
            for k in (32, 64):
                yield by_triton(arch, "bf16", 256, 256, k, warps)
        yield by_ck(arch, "bf16", 256, 256, 64, (2, 4))
        yield by_ck(arch, "bf16", 256, 256, 32, (2, 4), "v4")
        yield by_ck(arch, "bf16", 256, 256, 64)
        yield by_triton(arch, "bf16", 256, 128, 64, 4)
        yield by_ck(arch, "bf16", 256, 128, 64)
        yield by_triton(arch, "bf16", 128, 128, 64, 4)
        yield by_ck(arch, "bf16", 128, 128, 64)
        for warps in (4, 8):
            for k in (64, 128):
                yield by_triton(arch, "fp8", 256, 256, k, warps)
        yield by_ck(arch, "fp8", 256, 256, 128, (2, 4))
        yield by_ck(arch, "fp8", 256, 256, 128)
        yield by_triton(arch, "fp8", 128, 128, 128, 8)
        yield by_ck(arch, "fp8", 128, 128, 128)
        yield by_triton(arch, "int8", 128, 128, 128, 8)
        yield by_ck(arch, "int8", 128, 128, 128)


@functools.cache
def here(arch: str, dtype: str, tile: tuple[int, int]) -> Report:
    """The same tile here."""
    return launches.product(arch, dtype, *tile, K_BYTES)[1]


def busy(report: Report) -> float:
    """The share of the loop in which the matrix unit works."""
    assert report.schedule is not None
    assert report.schedule.loop is not None
    return report.schedule.loop.mfma_utilisation


def whole(report: Report, waves: int) -> str:
    """Cycles of a compute unit for a tile with its beginning and end, those that fit at once taken together."""
    assert report.schedule is not None
    if report.schedule.is_cut:
        return "not known"
    return f"{report.schedule.cycles * waves / 4 / report.schedule.waves:.0f}"


def table() -> Iterator[str]:
    """The comparison, and how far it depends on what the model assumes."""
    yield "\n## The same tile by Triton and by CK\n"
    yield "Triton: the kernels of `opmux-triton` by the installed Triton, with two stages. CK: the instances of"
    yield "`opmux-ck`, compiled by clang 22 (ziglang), which spills registers in each tile of 256x256; those of four"
    yield "waves, with 256 sums a thread, are none of the backend's. AMD's own compiler may do better. `k` is a step's,"
    yield "in elements. Equal tiles do equal work, so the ratio of the shares is that of the cycles of the loops."
    yield "The last columns are a compute unit's cycles for a whole tile with `k` of 2048 bytes, which is short: at"
    yield "the end, the kernels here store rows of 16 bytes from registers, and the model charges for each line.\n"
    yield (
        "| arch | x and w | tile | by | waves | how | registers spilled | matrix unit busy | busy here "
        "| here over theirs | whole tile | whole tile here |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
    for peer in peers():
        size = f"{peer.tile[0]}x{peer.tile[1]}"
        start = f"| {peer.arch} | {peer.dtype} | {size} | {peer.by} | {peer.waves} | {peer.how}"
        try:
            code, run = made(peer)
            report = run(True)
        except Exception as error:  # a config that does not fit the arch
            yield f"{start} | refused: {' '.join(str(error).split())[:60]} | | | | | |"
            continue
        judged = ", ".join(sorted({one.rule for one in report.judgements}))
        theirs, ours = busy(report), here(peer.arch, peer.dtype, peer.tile)
        yield (
            f"{start}{f'; judged: {judged}' if judged else ''} | {spilled(code)} | {theirs:.3f} | {busy(ours):.3f} "
            f"| {busy(ours) / theirs:.2f} | {whole(report, peer.waves)} | {whole(ours, 4)} |"
        )
    yield from by_latency()


ASSUMED = (Latencies(), Latencies(lds=16), Latencies(lds=32), Latencies(vmem=400), Latencies(lds=32, vmem=400))


def by_latency() -> Iterator[str]:
    """Loops under other latencies than the model's."""
    yield "\n## If latencies are longer\n"
    yield "The share in which the matrix unit works, bfloat16, gfx942, if LDS takes longer than the model's 20 cycles"
    yield "and memory longer than its 320. A loop that the model flattered by its short latencies would fall.\n"
    heads = [f"LDS {4 * one.lds}, memory {4 * one.vmem}" for one in ASSUMED]
    yield f"| tile | by | waves a SIMD | {' | '.join(heads)} |"
    yield f"|---|---|---|{'---|' * len(ASSUMED)}"
    arch = "gfx942"
    for others in (
        (by_triton(arch, "bf16", 256, 256, 32, 8), by_triton(arch, "bf16", 256, 256, 64, 8)),
        (by_ck(arch, "bf16", 256, 128, 64),),
        (by_ck(arch, "bf16", 128, 128, 64),),
    ):
        tile = others[0].tile
        runs: dict[str, Callable[[Model], Report]] = {
            "here": lambda model, tile=tile: launches.product(arch, "bf16", *tile, K_BYTES, model=model)[1]
        }
        runs |= {f"{peer.by}, {peer.waves} waves, {peer.how}": made(peer)[1] for peer in others}
        for name, run in runs.items():
            reports = [run(one) for one in ASSUMED]
            shares = " | ".join(f"{busy(report):.3f}" for report in reports)
            waves = reports[0].schedule.waves if reports[0].schedule else 0
            yield f"| {tile[0]}x{tile[1]} | {name} | {waves} | {shares} |"


def main() -> None:
    """Print the tables alone."""
    for line in table():
        print(line, flush=True)


if __name__ == "__main__":
    main()
