"""Config variants of the memory-bound ops beside torch.compile and a plain copy.

``python benchmarks/sweep_memory.py --out FILE.json [--seconds 180] [--only PREFIX ...] [--skip SECTION ...]``

Checks the results first, at odd shapes too; then times every variant in interleaved rounds: large tensors by events
around single calls, few rows by graph replays (warm cache) and by events after a flush (cold cache), and the host's
share of a call. ``--open`` runs only the large cases that are still open, without peers. ``--dry`` goes through
everything with tiny tensors and invented times, under TRITON_INTERPRET=1.
"""

import argparse
import faulthandler
import json
import math
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
for package in ("core", "plugins-triton"):
    sys.path.append(str(Path(__file__).parents[2] / package / "src"))

import torch  # noqa: E402
from compiled_peers import compiled, use_cache, warm, written  # noqa: E402
from memory_cases import LARGE, OPEN, SMALL, SUBJECTS, Config, Shape, Subject, has_peer  # noqa: E402

from opmux.arch import Arch, parse_arch  # noqa: E402

Run = Callable[[], Any]
ROUNDS = 12
CALLS_IN_GRAPH = 40
FLUSH = 256 * 2**20
ODD: list[tuple[str, Shape]] = [
    *((op, {"T": 37, "H": h}) for op in SUBJECTS if "norm" in op for h in (4096, 1000, 7)),
    *((op, {"T": 37, "H": 40000}) for op in SUBJECTS if "norm" in op),
    *((op, {"T": 500, "H": h}) for op in SUBJECTS if "norm_backward" in op for h in (8192, 5120, 2880, 200)),
    *((op, {"T": 500, "H": h}) for op in SUBJECTS if "norm_backward" in op for h in (12288, 16384, 9001)),
    *((op, {"T": 37, "N": n}) for op in SUBJECTS if "_mul" in op for n in (14336, 999)),
    *((op, {"T": 37, "Q": 32, "K": 8, "D": 128}) for op in SUBJECTS if "rope" in op),
    *((op, {"T": 37, "Q": 5, "K": 1, "D": 80}) for op in SUBJECTS if "rope" in op),
    *(("write_kv_cache", {"T": 37, "K": k, "D": d}) for k, d in ((8, 128), (3, 80))),
]  # fmt: skip

HOST = {"H": 4096, "N": 4096, "Q": 32, "K": 8, "D": 128, "T": 16}


def compile_only(job: tuple[str, Shape, list[Config], str]) -> list[str]:
    """Compile variants into Triton's cache, without a device; a worker's task. Returns what failed."""
    from opmux_triton.aot.build import build
    from opmux_triton.launch import recording

    name, shape, configs, arch = job
    subject, failed = SUBJECTS[name], []
    for config in configs:
        try:
            with recording(arch) as recorded:
                subject.run(subject.make(shape, "meta"), config)
            for made in recorded.launches:
                build(made, arch)
        except Exception as error:  # a variant that does not compile is shown when it is run
            failed.append(f"{name} {shape} {config}: {type(error).__name__}: {str(error)[:200]}")
    return failed


class Sweep:
    """One run: what is measured, and until when."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.dry: bool = arguments.dry
        self.device = "cpu" if self.dry else "cuda"
        self.deadline = time.perf_counter() + arguments.seconds
        self.out: Path = arguments.out
        self.skip: set[str] = set(arguments.skip)
        self.shown = 9 if arguments.open else 3
        self.result: dict[str, Any] = {"large": [], "small": [], "host": [], "failed": [], "checked": {}}
        self.table: list[str] = []
        self.expected: dict[str, tuple[list[Any], Any]] = {}
        self.cache = Path(tempfile.mkdtemp(prefix="inductor-"))
        use_cache(self.cache)
        wanted = tuple(arguments.only)
        self.large = [c for c in LARGE[: OPEN if arguments.open else None] if not wanted or c[0].startswith(wanted)]
        if arguments.open:
            self.skip |= {"small", "host", "peers"}
        self.small = [] if "small" in self.skip else [c for c in SMALL if not wanted or c[0].startswith(wanted)]
        if self.dry:
            self.large = [(op, {**s, "T": 3}, v[:2]) for op, s, v in self.large]
            self.small = [(op, {**s, "T": 2}, v[:1]) for op, s, v in self.small[::6]]
        else:
            major, minor = torch.cuda.get_device_capability()
            self.arch: Arch = parse_arch(f"sm_{major}{minor}")
            self.flush = torch.empty(FLUSH, dtype=torch.int8, device="cuda")
        if self.dry:
            self.arch = parse_arch("sm_90")

    def left(self) -> float:
        """Seconds."""
        return self.deadline - time.perf_counter()

    def save(self) -> None:
        """Write what there is."""
        self.out.write_text(json.dumps(self.result, indent=1))

    def fail(self, what: str, error: BaseException) -> None:
        """Note a failure in one line."""
        line = f"{what}: {type(error).__name__}: {' '.join(str(error).split())[:160]}"
        self.result["failed"].append(line)
        print("FAILED", line, flush=True)

    def say(self, line: str) -> None:
        """A line of the table that is printed last."""
        self.table.append(line)

    def variants(self, subject: Subject, shape: Shape, configs: list[Config]) -> dict[str, Config]:
        """By name; the heuristic's choice first."""
        chosen = subject.heuristic(self.arch, shape)
        plain = {k: v for k, v in chosen.items() if k != "wide"}
        return {"now": chosen} | {_name(c): c for c in configs if c != plain}

    def precompile(self) -> None:
        """Compile everything in parallel: the variants without the device, the peers in turns on it."""
        if self.dry:
            return
        wanted = {case[0] for case in (*self.large, *self.small)}
        cases: list[tuple[str, Shape, list[Config]]] = [*self.large, *self.small]
        peers = [(n, dict(s), str(self.cache)) for n, s, _ in cases if "peers" not in self.skip and has_peer(n, s)]
        cases += [(name, shape, []) for name, shape in ODD if name in wanted]
        jobs = []
        for name, shape, configs in cases:
            every = list(self.variants(SUBJECTS[name], shape, configs).values())
            jobs += [(name, shape, every[i : i + 3], str(self.arch)) for i in range(0, len(every), 3)]
        started = time.perf_counter()
        half = max(1, min(14, os.cpu_count() or 1) // (2 if peers else 1))
        pools = [ProcessPoolExecutor(half, mp_context=multiprocessing.get_context("spawn")) for _ in range(2)]
        try:
            of_peers, of_jobs = (
                [pools[0].submit(warm, p) for p in peers],
                [pools[1].submit(compile_only, j) for j in jobs],
            )
            until = started + self.left() / 2
            for future in (*of_jobs, *of_peers):
                try:
                    problem = future.result(timeout=max(0.1, until - time.perf_counter()))
                    self.result["failed"] += problem if isinstance(problem, list) else [problem] if problem else []
                except Exception as error:
                    self.result["failed"].append(f"precompile: {type(error).__name__}: {str(error)[:160]}")
        finally:
            for pool in pools:
                workers = list((pool._processes or {}).values())
                pool.shutdown(wait=False, cancel_futures=True)
                for worker in workers:
                    worker.kill()
        done = sum(f.done() and not f.cancelled() for f in of_peers)
        took = time.perf_counter() - started
        print(f"compiled {len(jobs)} groups, {done} of {len(peers)} peers in {took:.0f} s", flush=True)

    def check(self) -> None:
        """Every op at odd shapes, and with every variant at its own, against the plain formulation in float32."""
        for name, shape in ODD:
            if self.dry and max(shape.values()) > 2000:
                continue
            if any(name == case[0] for case in self.large):
                self._check_one(name, shape, SUBJECTS[name].heuristic(self.arch, shape), "odd")

    def _check_one(self, name: str, shape: Shape, config: Config, kind: str) -> bool:
        subject = SUBJECTS[name]
        try:
            key = f"{name} {_label(shape)}"
            if subject.in_place or key not in self.expected:
                tensors = subject.make(shape, self.device)
                copies = [t.clone() for t in tensors]
                wide = [t.double() if t.is_floating_point() else t for t in copies]
                expected = subject.plain(*(wide if not subject.in_place else copies))
                self.expected = {key: (tensors, expected)}
            else:
                (tensors, expected), copies = self.expected[key], []
            found = subject.run(tensors, config)
            if subject.in_place:
                found, expected = tensors, copies
            worst = max(_distance(a, b) for a, b in zip(_several(found), _several(expected), strict=True))
        except Exception as error:
            self.fail(f"check {name} {shape} {config}", error)
            return False
        label = f"{name} {kind}"
        self.result["checked"][label] = max(worst, self.result["checked"].get(label, 0.0))
        if not worst < 6e-3:
            self.fail(f"check {name} {shape} {config}", ValueError(f"relative error {worst:.2e}"))
            return False
        return True

    def peer(self, name: str, shape: Shape, tensors: list[Any]) -> Run | None:
        """torch.compile at its best, warmed up; None where it is not wanted or there is no time for it."""
        subject = SUBJECTS[name]
        if "peers" in self.skip or not has_peer(name, shape) or self.left() < 6:
            return None
        run: Any = subject.plain
        if not self.dry:
            run = compiled(name)
        for _ in range(3):
            run(*tensors)
        return lambda: run(*tensors)

    def run_large(self) -> None:
        """Events around single calls, in interleaved rounds; TB/s."""
        for name, shape, configs in self.large:
            if self.left() < 10:
                self.say(f"{name} {_label(shape)}: no time left")
                continue
            subject = SUBJECTS[name]
            try:
                tensors = subject.make(shape, self.device)
                runs = self._checked_runs(name, shape, configs, tensors)
                source = torch.empty(subject.traffic(shape) // 2, dtype=torch.int8, device=self.device).random_()
                target = torch.empty_like(source)
                runs["copy"] = lambda target=target, source=source: target.copy_(source)
                try:
                    if (peer := self.peer(name, shape, tensors)) is not None:
                        runs["compile"] = peer
                except Exception as error:
                    self.fail(f"peer {name}", error)
                taken = self._interleaved(runs)
            except Exception as error:
                self.fail(f"large {name} {shape}", error)
                continue
            rates = {k: subject.traffic(shape) / v / 1e6 for k, v in taken.items()}
            self._report(name, shape, rates, "TB/s", best=max)
            self.result["large"].append({"op": name, "shape": dict(shape), "tb_s": rates})
            self.save()
            del tensors, runs, source, target

    def _checked_runs(self, name: str, shape: Shape, configs: list[Config], tensors: list[Any]) -> dict[str, Run]:
        """Variants that run and give the result of the first one."""
        subject, runs = SUBJECTS[name], {}
        small = {**shape, "T": min(shape["T"], 300)}
        for label, config in self.variants(subject, shape, configs).items():
            if self._check_one(name, small, config, "variants"):
                try:
                    subject.run(tensors, config)
                    self._wait()
                    runs[label] = lambda config=config: subject.run(tensors, config)
                except Exception as error:
                    self.fail(f"{name} {shape} {config}", error)
        return runs

    def _wait(self) -> None:
        if not self.dry:
            torch.cuda.synchronize()

    def _interleaved(self, runs: dict[str, Run], cold: bool = False) -> dict[str, float]:
        """Median microseconds of single calls between events; the host keeps ahead, as work waits in the queue."""
        if self.dry:
            for run in runs.values():
                run()
            return {k: 100.0 + i for i, k in enumerate(runs)}
        events: dict[str, list[Any]] = {k: [] for k in runs}
        names = list(runs)
        for number in range(ROUNDS * (2 if cold else 1)):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                if cold or name == names[first]:
                    self.flush.zero_()
                begin.record()
                runs[name]()
                end.record()
                events[name].append((begin, end))
            torch.cuda.synchronize()
        return {k: statistics.median(b.elapsed_time(e) for b, e in v[1:]) * 1e3 for k, v in events.items()}

    def run_small(self) -> None:
        """Graph replays, and events on a cold cache; microseconds."""
        for name, shape, configs in self.small:
            if self.left() < 3:
                self.say(f"{name} {_label(shape)}: no time left")
                continue
            subject = SUBJECTS[name]
            try:
                tensors = subject.make(shape, self.device)
                runs = self._checked_runs(name, shape, configs, tensors)
                try:
                    if (peer := self.peer(name, shape, tensors)) is not None:
                        runs["compile"] = peer
                except Exception as error:
                    self.fail(f"peer {name}", error)
                warm, cold = self._replayed(runs), self._interleaved(runs, cold=True)
            except Exception as error:
                self.fail(f"small {name} {shape}", error)
                continue
            self._report(name, shape, warm, "us", best=min, beside=cold)
            self.result["small"].append({"op": name, "shape": dict(shape), "warm_us": warm, "cold_us": cold})
            self.save()

    def _replayed(self, runs: dict[str, Run]) -> dict[str, float]:
        if self.dry:
            return {k: 2.0 + i for i, k in enumerate(runs)}
        graphs = {}
        for name, run in runs.items():
            try:
                graph = torch.cuda.CUDAGraph()
                run()
                torch.cuda.synchronize()
                with torch.cuda.graph(graph):
                    for _ in range(CALLS_IN_GRAPH):
                        run()
                graphs[name] = graph.replay
            except Exception as error:
                self.fail(f"graph {name}", error)
        taken = self._interleaved(graphs)
        return {k: v / CALLS_IN_GRAPH for k, v in taken.items()}

    def _report(
        self, name: str, shape: Shape, values: dict[str, float], unit: str, best: Any,
        beside: dict[str, float] | None = None,
    ) -> None:  # fmt: skip
        mine = {k: v for k, v in values.items() if k not in ("copy", "compile")}
        if not mine:
            return
        order = sorted(mine, key=mine.__getitem__, reverse=best is max)[: self.shown]
        digits = 3 if unit == "TB/s" else 2

        def shown(key: str) -> str:
            cold = f"({beside[key]:.1f})" if beside and key in beside else ""
            return f"{values[key]:.{digits}f}{cold}" if key in values else "-"

        tops = "  ".join(f"{k} {shown(k)}" for k in order)
        copy = f"copy {shown('copy')} " if "copy" in values else ""
        self.say(f"{name} {_label(shape)}: {copy}compile {shown('compile')} now {shown('now')} | {tops}")

    def run_host(self) -> None:
        """Host time of targets beside allocation and a direct launch of the same kernel."""
        seen = dict.fromkeys(case[0] for case in (*self.small, *self.large))
        for name in seen:
            if self.left() < 4:
                return
            subject = SUBJECTS[name]
            try:
                config = subject.heuristic(self.arch, HOST)
                tensors = subject.make(HOST, self.device)
                subject.run(tensors, config)
                taken = {k: self._host_us(run) for k, run in self._host_runs(subject, tensors, config).items()}
            except Exception as error:
                self.fail(f"host {name}", error)
                continue
            self.result["host"].append({"op": name, **taken})
            shown = "  ".join(f"{k} {v:.2f}" for k, v in taken.items())
            self.say(f"host {name}: {shown} us, target / least {taken['target'] / taken['least']:.2f}")
            self.save()

    def _host_runs(self, subject: Subject, tensors: list[Any], config: Config) -> dict[str, Run]:
        """The target; its launches alone; what its results and launches cost a user of Triton."""
        from opmux_triton.launch import FUSION, launch, recording

        with recording(str(self.arch)) as recorded:
            subject.run(tensors, config)
        given = [id(t) for t in tensors]
        arguments = [a for made in recorded.launches for a in made.arguments]
        new = [a for a in arguments if isinstance(a, torch.Tensor) and id(a) not in given]
        bare = [{k: v for k, v in made.meta.items() if k not in FUSION} for made in recorded.launches]

        def least() -> None:
            for tensor in new:
                torch.empty_like(tensor)
            for made in recorded.launches:
                made.kernel[made.grid](*made.arguments, **made.meta)

        def launched() -> None:
            for made, meta in zip(recorded.launches, bare, strict=True):
                launch(made.kernel, made.grid, made.arguments, meta)

        return {"target": lambda: subject.run(tensors, config), "launch": launched, "least": least}

    def _host_us(self, run: Run) -> float:
        calls, samples = (1, []) if self.dry else (200, [])
        for _ in range(2 if self.dry else 11):
            self._wait()
            started = time.perf_counter_ns()
            for _ in range(calls):
                run()
            samples.append((time.perf_counter_ns() - started) / calls / 1e3)
        return statistics.median(samples)


def _several(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative, in the Frobenius norm; NaN counts as infinitely far."""
    a, b = found.double(), expected.double()
    value = float((a - b).norm() / b.norm().clamp_min(1e-30))
    return float("inf") if math.isnan(value) else value


def _name(config: Config) -> str:
    short = {
        "BLOCK": "b",
        "BLOCK_HEADS": "h",
        "TOKENS": "t",
        "ROWS": "r",
        "STAGES": "s",
        "num_warps": "w",
        "programs": "p",
    }
    parts = [f"{letter}{config[k]}" for k, letter in short.items() if k in config]
    parts += [f"again-{config['AGAIN']}"] if config.get("AGAIN") else []
    parts += [f"t{config['TAIL']}"] if config.get("TAIL") else []
    parts += ["-stream"] if config.get("STREAM") else []
    parts += ["c64"] if config.get("sum_columns") == 64 else []
    return "".join(parts)


def _label(shape: Shape) -> str:
    return "x".join(str(v) for v in shape.values())


def main() -> None:
    """Run the sections that were asked for, then print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--skip", nargs="*", default=[], choices=("large", "small", "host", "peers", "check"))
    parser.add_argument("--open", action="store_true", help="only what is still open")
    parser.add_argument("--dry", action="store_true")
    arguments = parser.parse_args()
    faulthandler.dump_traceback_later(arguments.seconds + 60, exit=True)
    torch.manual_seed(0)
    sweep = Sweep(arguments)
    steps = {
        "compile": sweep.precompile, "check": sweep.check, "host": sweep.run_host, "large": sweep.run_large,
        "small": sweep.run_small,
    }  # fmt: skip
    for name, step in steps.items():
        if name in sweep.skip:
            continue
        started = time.perf_counter()
        try:
            step()
        except Exception as error:
            sweep.fail(name, error)
        print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)
        sweep.save()
    sweep.result["peers"] = written(sweep.cache)
    sweep.save()
    shutil.rmtree(sweep.cache, ignore_errors=True)
    worst = max(sweep.result["checked"].items(), key=lambda item: item[1], default=("none", 0.0))
    failed = len(sweep.result["failed"])
    print(f"{len(sweep.result['checked'])} checks, worst {worst[0]} {worst[1]:.1e}; {failed} failed")
    print("\n".join(sweep.table))


if __name__ == "__main__":
    main()
