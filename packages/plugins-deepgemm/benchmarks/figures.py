"""DeepGEMM's table of figures on a Hopper GPU: `python packages/plugins-deepgemm/benchmarks/figures.py --to lines.txt`.

One command measures each line: the kernel that the cost model (or a tuned record) chooses, its runners-up and variants,
and torch's products by cuBLASLt. Kernels are compiled first. The lines then run in a process of their own, in the order
of `PARTS`, the most important first. A line that hangs or crashes costs only itself: the next ones run in another
process. Each line is added to the file as JSON as soon as it is measured; a second run of the command measures what is
missing there. ``--collect FILE... --out FILE`` makes docs/benchmarks/data/deepgemm.json of such files.

A time is the median over rounds of the sum of every kernel, copy and memset that a call starts, as the CUDA profiler
records them; 8 GB are read and written before each call, so that the second-level cache is cold. Ways take turns. Group
sizes vary by 0.7 to 1.3 about their mean, by a seed that is printed, as are the shapes of the last table.
"""

import argparse
import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OPMUX_PLUGINS", "deepgemm")

import gradients_on_gpu
import grouped_on_gpu
import scaled_gradients_on_gpu
import torch
from apart import Limits, measured
from on_gpu import ADDED, LISTED, compile_kernels, lying, milliseconds, operands, rivals, say, short

from opmux.plugin import registered_ops, takers
from opmux.shapes import Point, write_shapes
from opmux_deepgemm import launching
from opmux_deepgemm.configs import Config
from opmux_deepgemm.generation.source import Product
from opmux_deepgemm.gradient_model import scored_gradients
from opmux_deepgemm.model import scored
from opmux_deepgemm.scaled_gradient_model import scored_gradients as scored_scaled_gradients
from opmux_deepgemm.space import Sizes
from opmux_deepgemm.summing import add_gradients, add_scaled_gradients

FLUSHED = 1 << 30
"""Elements of 4 bytes that are read and written before each call."""
ROUNDS = 7
KEPT = 10
"""Configs that are timed for a line, of different kinds."""
SEED = 20261203
"""Of the drawn shapes. Take another one when a kernel or the model has been changed by one of them."""
RIVALS = ("cublas", "fast", "blocks")
"""What torch's products are called."""
MARKS = ("sin_kernel", "spin_kernel")
"""Names of the kernels between two calls."""
PARTS = (
    "fp8 4096", "added", "ragged k", "seeded", "fp8 128", "fp8 1", "contiguous", "masked", "bf16 4096", "bf16 128",
    "bf16 1", "gradients",
)  # fmt: skip
"""The most important first: a run may end before the last."""


class Line(NamedTuple):
    """A product of the table; ``groups`` is 0 where there is one matrix."""

    part: str
    m: int
    n: int
    k: int
    groups: int = 0

    @property
    def dtype(self) -> str:
        """``bf16`` or ``fp8``."""
        return "bf16" if self.part.startswith(("bf16", "gradients")) else "fp8"

    @property
    def sizes(self) -> Sizes:
        """What the cost model is given."""
        k_bytes = self.k * (2 if self.dtype == "bf16" else 1)
        return Sizes(
            self.m * max(self.groups, 1), self.n, k_bytes, self.dtype == "fp8", self.groups, self.part == "added"
        )

    @property
    def product(self) -> Product:
        """What is compiled."""
        if self.part == "added":
            return Product("float8_e4m3fn", "float32", self.n, self.k, accumulate=True)
        if self.part == "gradients":
            return gradients_on_gpu.product(self.n, self.k)
        if self.part == "ragged k":
            return scaled_gradients_on_gpu.product(self.n, self.k)
        if self.groups:
            return grouped_on_gpu.product_of(self.family, self.n, self.k)
        return Product("bfloat16" if self.dtype == "bf16" else "float8_e4m3fn", "bfloat16", self.n, self.k)

    def kernel(self, config: Config) -> tuple[Product, Config]:
        """What is compiled for a config."""
        return lying(self.product, config, self.m * max(self.groups, 1))

    @property
    def family(self) -> str:
        """What the operands are made as."""
        if not self.groups:
            return self.dtype
        return ("ragged " if self.part == "contiguous" else "masked ") + self.dtype

    def configs(self) -> list[Config]:
        """The model's choice first, then the best of each kind."""
        together = self.groups * self.m, self.n, self.k, self.groups
        if self.part == "gradients":
            return [one.config for one in scored_gradients(*together)[:KEPT]]
        if self.part == "ragged k":
            return [one.config for one in scored_scaled_gradients(*together)[:KEPT]]
        found: dict[object, Config] = {}
        for _, config in scored(self.sizes):
            kind = config.kernel, config.block_m, config.block_n, config.cluster, config.pieces, config.staged
            found.setdefault(kind, config)
        return list(found.values())[:KEPT]


def lines(part: str) -> list[Line]:
    """The lines of a part."""
    if part == "seeded":
        return list(seeded())
    if part == "added":
        return [Line(part, *shape) for shape in ADDED]
    if part == "gradients":
        return [Line(part, 7100, 4096, 7168, 4), Line(part, 4096, 7168, 2048, 8)]
    if part == "ragged k":
        sizes, n, k = scaled_gradients_on_gpu.LISTED
        return [Line(part, sum(sizes) // len(sizes), n, k, len(sizes))]
    if part in ("contiguous", "masked"):
        sizes = grouped_on_gpu.RAGGED if part == "contiguous" else grouped_on_gpu.MASKED
        return [Line(part, m, n, k, groups) for groups, m in sizes for n, k in grouped_on_gpu.WEIGHTS]
    return [Line(part, int(part.split()[1]), n, k) for n, k in LISTED]


def seeded() -> Iterator[Line]:
    """Twenty drawn shapes of fp8: about a third each of few, of some and of many rows."""
    draw = random.Random(SEED)
    for i in range(20):
        least, most = ((1, 4), (65, 256), (1024, 8192))[i % 3]
        m = draw.randint(least, most)
        yield Line("seeded", m, 64 * draw.randint(9, 300), 128 * draw.randint(4, 96))


def device_times(calls: Sequence[Callable[[], object]], rounds: int = ROUNDS) -> list[float]:
    """The median microseconds of device work of each call."""
    flush = torch.zeros(FLUSHED, device="cuda")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(rounds):
            for call in calls:
                torch.sin(flush, out=flush)
                torch.cuda._sleep(4000)  # the call is launched by now: no kernel of it waits for the host
                call()
        torch.cuda.synchronize()
    assert profile.profiler is not None
    events = [
        event
        for event in profile.profiler.kineto_results.events()
        if event.device_type() == torch.autograd.DeviceType.CUDA and event.duration_ns() > 0
    ]
    spent: list[float] = []
    for event in sorted(events, key=lambda event: event.start_ns()):
        if MARKS[1] in event.name():
            spent.append(0.0)
        elif spent and MARKS[0] not in event.name():  # a large tensor takes two of them
            spent[-1] += event.duration_ns() / 1e3
    if len(spent) != rounds * len(calls):
        raise RuntimeError(f"the profiler recorded {len(spent)} calls, expected {rounds * len(calls)}")
    return [sorted(spent[place :: len(calls)])[rounds // 2] for place in range(len(calls))]


def ways(line: Line) -> tuple[dict[str, Callable[[], object]], int, int]:
    """Calls by name, of which torch's come first; the operations and the bytes of one."""
    if line.part == "gradients":
        return gradient_ways(line)
    if line.part == "ragged k":
        return ragged_ways(line)
    if line.groups:
        rows = grouped_on_gpu.varied(line.groups, line.m)
        given = grouped_on_gpu.operands(line.family, rows, line.n, line.k)
        y = given.x.new_empty((*given.x.shape[:-1], line.n), dtype=torch.bfloat16)
        moved = (sum(rows) + line.groups * line.n) * line.k + 2 * sum(rows) * line.n
        count = sum(rows)
        found: dict[str, Callable[[], object]] = {}
    else:
        given, count = operands(line.dtype, line.m, line.n, line.k), line.m
        y = torch.zeros(line.m, line.n, dtype=torch.bfloat16, device="cuda")
        moved = (given.x.numel() + given.w.numel()) * given.x.element_size() + 2 * y.numel()
        found = dict(rivals(line.dtype, given))
    added = line.part == "added"
    if added:
        found.pop("blocks")
        y = torch.zeros(line.m, line.n, device="cuda")
        given = given._replace(w_scale=torch.rand(-(-line.k // 128), line.n, device="cuda").t() + 0.5)
    for config in line.configs():
        found[short(config)] = partial(launching.multiply, config, given, y, accumulate=added)
    return found, 2 * count * line.n * line.k, moved


def gradient_ways(line: Line) -> tuple[dict[str, Callable[[], object]], int, int]:
    """As `ways`; torch multiplies as many rows at once, for one group."""
    rows = grouped_on_gpu.varied(line.groups, line.m)
    given, out = (
        gradients_on_gpu.operands(rows, line.n, line.k),
        torch.zeros(line.groups, line.n, line.k, device="cuda"),
    )
    found: dict[str, Callable[[], object]] = {"cublas": lambda: torch.mm(given.dy.mT, given.x)}
    for config in line.configs():
        found[short(config)] = partial(
            add_gradients, config, given.dy, given.x, given.offsets, None, out
        )  # fmt: skip
    moved = 2 * sum(rows) * (line.n + line.k) + 8 * out.numel()
    return found, 2 * sum(rows) * line.n * line.k, moved


def ragged_ways(line: Line) -> tuple[dict[str, Callable[[], object]], int, int]:
    """As `ways`, of codes that lie along the rows that are summed; cuBLASLt has no such product."""
    rows, out = scaled_gradients_on_gpu.LISTED[0], torch.zeros(line.groups, line.n, line.k, device="cuda")
    given = scaled_gradients_on_gpu.operands(scaled_gradients_on_gpu.Case(rows, line.n, line.k, line.configs()[0]))
    found: dict[str, Callable[[], object]] = {
        short(config): partial(add_scaled_gradients, config, *given[:6], out) for config in line.configs()
    }
    moved = sum(rows) * (line.n + line.k) + 8 * out.numel()
    return found, 2 * sum(rows) * line.n * line.k, moved


def measure(line: Line) -> dict[str, Any]:
    """A line with the microseconds of each way."""
    calls, operations, moved = ways(line)
    failed = {}
    for name, call in list(calls.items()):
        try:
            call()
            torch.cuda.synchronize()
        except Exception as error:
            if "CUDA error" in str(error) and "CUBLAS" not in str(error):
                raise
            failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"
            del calls[name]
    timer = "profiler"
    try:
        times = device_times(list(calls.values()))
    except RuntimeError as error:
        if "CUDA error" in str(error):
            raise
        timer, flush = f"events: {str(error)[:80]}", torch.empty(1 << 32, dtype=torch.uint8, device="cuda")
        times = [1e3 * milliseconds(call, flush) for call in calls.values()]
    spent = dict(zip(calls, times, strict=True))
    chosen = short(line.configs()[0])
    return {
        **line._asdict(), "operations": operations, "bytes": moved, "chosen": chosen, "timer": timer,
        "microseconds": spent, "failed": failed,
    }  # fmt: skip


def key(line: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells a line from the others."""
    return tuple(line[name] for name in Line._fields)


def read_lines(paths: Sequence[Path]) -> tuple[dict[str, Any], dict[tuple[Any, ...], dict[str, Any]]]:
    """The machine, and the lines that were measured; of one that was measured twice the last one counts."""
    about: dict[str, Any] = {}
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for path in paths:
        for text in path.read_text(encoding="utf-8").splitlines():
            try:
                line = json.loads(text)
            except ValueError:  # a remark, or a line that was being written when the run ended
                continue
            if "device" in line:
                about = line
            elif "microseconds" in line:
                found[key(line)] = line
    return about, found


def warm() -> None:
    """Start the GPU and the profiler: the first use of either takes seconds."""
    one = torch.ones(256, 256, device="cuda")
    device_times([lambda: one @ one], rounds=1)


def run_parts(parts: Sequence[str], target: Path, limits: Limits) -> bool:
    """Add the lines of the parts that are missing in a file to it; says whether all are there now."""
    done = read_lines([target])[1]
    missing = [line for part in parts for line in lines(part) if tuple(line) not in done]
    say(f"# {len(missing)} lines of {', '.join(parts)} are missing")
    began, good = time.perf_counter(), True
    for number, outcome in enumerate(measured(missing, warm, measure, limits), 1):
        spent = f"{number} of {len(missing)}, {time.perf_counter() - began:.1f} s"
        if outcome.problem:
            good = False
            say(f"# FAILED {outcome.item} ({spent}): {outcome.problem}")
            continue
        with target.open("a", encoding="utf-8") as file:
            file.write(json.dumps(outcome.found) + "\n")
        say(f"{summary(outcome.found)} ({spent})")
    return good


def summary(line: Mapping[str, Any]) -> str:
    """A line for those who watch: the speeds of torch, of the model's choice and of the best."""
    spent = line["microseconds"]
    ours = {name: time for name, time in spent.items() if name not in RIVALS}
    best = min(ours, key=ours.__getitem__, default="none")
    shown = [name for name in (*RIVALS, line["chosen"], best) if name in spent]
    speeds = ", ".join(f"{name} {line['operations'] / spent[name] / 1e6:.0f}" for name in dict.fromkeys(shown))
    failed = f"; failed: {', '.join(line['failed'])}" if line["failed"] else ""
    groups = f"{line['groups']} x " if line["groups"] else ""
    return f"{line['part']}: {groups}{line['m']} {line['n']} {line['k']} TFLOPS: {speeds}{failed}"


def collect(outputs: list[Path], target: Path) -> None:
    """Write the file of the page."""
    about, found = read_lines(outputs)
    order = sorted(found.values(), key=lambda line: PARTS.index(line["part"]))
    target.write_text(json.dumps(about | {"lines": order}, indent=1) + "\n", encoding="utf-8")


def points(parts: Sequence[str]) -> Iterator[Point]:
    """The dense lines of the parts as calls of ops, for `opmux tune --shapes`."""
    for line in (line for part in parts if part.split()[0] in ("fp8", "bf16") for line in lines(part)):
        (m, n, k), blocks = (line.m, line.n, line.k), -(-line.k // 128)
        sizes = {"x": (m, k), "w": (n, k), "x_scale": (m, blocks), "w_scale": (-(-n // 128), blocks)}
        kinds = [torch.float8_e4m3fn] * 2 + [torch.float32] * 2
        op, options = "scaled_linear", {"out_dtype": torch.bfloat16}
        if line.dtype == "bf16":
            kinds, op, options = [torch.bfloat16] * 2, "linear", {}
        given = {
            name: torch.empty(sizes[name], dtype=kind, device="meta") for name, kind in zip(sizes, kinds, strict=False)
        }
        taker = takers(registered_ops()[op], *given.values(), arch="sm_90", backend="deepgemm", **options)[0]
        dims = {name: math.prod(d) if isinstance(d, tuple) else d for name, d in taker.call.dims.items()}
        yield Point(op, {name: tensor.dtype for name, tensor in given.items()}, dims, options)


def main() -> int:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compile", action="store_true", help="compile only; takes no GPU")
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--to", type=Path, default=Path("deepgemm-lines.txt"), help="the file that lines are added to")
    parser.add_argument("--start", type=float, default=60, help="seconds for a process to start the GPU")
    parser.add_argument("--limit", type=float, default=30, help="seconds for a line")
    parser.add_argument("--total", type=float, default=math.inf, help="seconds after which no line is begun")
    parser.add_argument("--collect", nargs="+", type=Path, help="files that lines were added to")
    parser.add_argument("--shapes", type=Path, help="only write the parts' calls to this file, for opmux tune")
    parser.add_argument("--out", type=Path, help="the file that --collect writes")
    given = parser.parse_args()
    began = time.monotonic()
    if given.collect:
        collect(given.collect, given.out)
        return 0
    if given.shapes:
        write_shapes(given.shapes, points(given.parts))
        return 0
    kernels: dict[tuple[Product, Config], None] = {}
    for part in given.parts:
        for line in lines(part):
            kernels.update(dict.fromkeys(map(line.kernel, line.configs())))
    failed = not compile_kernels(list(kernels))
    if given.compile:
        return int(failed)
    say(f"# group sizes by seed {grouped_on_gpu.SEED}, shapes by seed {SEED}")
    say_device = "import torch; p = torch.cuda.get_device_properties(0); print(p.name, p.multi_processor_count)"
    name = os.popen(f"{sys.executable} -c '{say_device}'").read().strip()  # this process must not touch the GPU
    about = {"device": name, "torch": torch.__version__, "cuda": torch.version.cuda, "date": time.strftime("%Y-%m-%d")}
    with given.to.open("a", encoding="utf-8") as file:
        about |= {"groups_seed": grouped_on_gpu.SEED, "shapes_seed": SEED, "rounds": ROUNDS}
        file.write("\n" + json.dumps(about) + "\n")  # an earlier run may have ended within a line
    limits = Limits(given.start, given.limit, began + given.total)
    return int(not run_parts(given.parts, given.to, limits) or failed)


if __name__ == "__main__":
    sys.exit(main())
