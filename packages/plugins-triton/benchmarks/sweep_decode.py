"""A decode step of a small model, its launch parameters tried one after the other in a CUDA graph of all layers.

``python sweep_decode.py --out FILE.json [--batch 8] [--context 2112]`` on a GPU. The step is that of `model.py`: 16
layers of hidden 2048, 32/8 heads of 64. Each variant changes the config of one product or of paged attention in every
layer, and the time of the whole step is taken: what counts is what a kernel costs among the others, with weights and
cache from memory. Variants are compiled in parallel first. ``--dry`` runs the logic without a GPU's kernels.
"""

import argparse
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import opmux
from opmux_triton import launch as launching
from opmux_triton import repeats
from opmux_triton.gemm import targets as gemm
from opmux_triton.paged import targets as paged

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, LAYERS, PAGE = 2048, 32, 8, 64, 8192, 16, 16
WEIGHTS = {
    "qkv": ((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN),
    "out": (HIDDEN, HEADS * HEAD_DIM),
    "gate_up": (2 * INTERMEDIATE, HIDDEN),
    "down": (HIDDEN, INTERMEDIATE),
}
Change = tuple[str, dict[str, Any]]


def products() -> dict[str, dict[str, Any]]:
    """Configs of the transposed product, by label: tile of n, tile of m, k of a block, warps, stages."""
    found = {}
    for rows, block_k, warps, stages in (
        (64, 256, 4, 5), (64, 128, 4, 8), (64, 128, 4, 10), (64, 512, 4, 3), (32, 256, 4, 5), (32, 512, 4, 4),
        (32, 256, 4, 8), (16, 512, 4, 4), (16, 256, 4, 8), (16, 1024, 4, 3), (16, 512, 2, 4), (16, 512, 8, 4),
    ):  # fmt: skip
        found[f"{rows}k{block_k}w{warps}s{stages}"] = {
            "kind": "tiles", "tma": True, "store": "descriptor", "uneven": {}, "otherwise": {"block_k": 64},
            "flatten": True, "parts": 1, "swap": True, "block_m": rows, "block_n": 16, "block_k": block_k, "group": 8,
            "cut_rest": False, "per_unit": 1, "xcds": 1, "sum_rows": 16, "num_warps": warps, "num_stages": stages,
        }  # fmt: skip
    for label in ("64k256w4s5", "32k256w4s5", "64k128w4s8"):
        for per_unit in (1, 2):
            if not (label == "64k256w4s5" and per_unit == 2):
                found[f"shares {label} u{per_unit}"] = found[label] | {"kind": "shares", "per_unit": per_unit}
    found["64k128w4s5 u2"] = found["64k128w4s8"] | {"num_stages": 5, "per_unit": 2}
    return found


def attentions() -> dict[str, dict[str, Any]]:
    """Changes of paged attention's config, by label."""
    found = {}
    for block, warps, stages, programs in (
        (64, 4, 3, 2), (64, 4, 3, 3), (64, 4, 3, 4), (64, 4, 3, 6), (64, 4, 3, 8), (64, 4, 2, 4), (64, 2, 3, 4),
        (64, 2, 3, 8), (32, 4, 3, 4), (32, 2, 4, 4), (32, 4, 6, 4), (128, 4, 2, 2), (128, 4, 3, 2), (128, 4, 2, 4),
        (128, 8, 2, 4), (64, 4, 4, 2), (64, 8, 3, 4), (64, 4, 4, 8),
    ):  # fmt: skip
        found[f"n{block}w{warps}s{stages}p{programs}"] = {
            "decode_block_n": block, "decode_num_warps": warps, "decode_num_stages": stages,
            "decode_programs": programs, "decode_least": 128,
        }  # fmt: skip
    return found


class Step:
    """The tensors of a decode step, and the step itself."""

    def __init__(self, batch: int, context: int, device: str) -> None:
        def random(*shape: int) -> Tensor:
            return (torch.randn(shape, device=device) * shape[-1] ** -0.5).bfloat16()

        self.weights = {name: [random(*shape) for _ in range(LAYERS)] for name, shape in WEIGHTS.items()}
        pages = -(-context // PAGE)
        self.cache = torch.randn(
            batch * pages, LAYERS, 2, PAGE, KV_HEADS, HEAD_DIM, device=device, dtype=torch.bfloat16
        )
        self.table = torch.randperm(batch * pages).to(torch.int32).reshape(batch, pages).to(device)
        self.offsets = torch.arange(batch + 1, dtype=torch.int32, device=device)
        self.lengths = torch.full((batch,), context - 8, dtype=torch.int32, device=device)
        self.position = torch.full((batch,), context - 9, dtype=torch.int64, device=device)
        self.slots = torch.arange(batch, device=device) * PAGE * pages
        self.cos, self.sin = torch.randn(2, 4096, HEAD_DIM // 2, device=device)
        self.norm = torch.ones(HIDDEN, device=device).bfloat16()
        self.x, self.context = random(batch, HIDDEN), context
        self.base = self.configs()

    def configs(self) -> dict[str, dict[str, Any]]:
        """What the heuristics give for each part."""
        found = {}
        for name, (weight, *_) in self.weights.items():
            x = self.x.new_empty(len(self.x), weight.shape[1])
            found[name] = config_of(opmux.explain(opmux.linear, x, weight))
        k, v = self.cache[:, 0, 0], self.cache[:, 0, 1]
        q = self.x.reshape(len(self.x), HEADS, HEAD_DIM)
        bounds = {"max_seqlen_q": 1, "max_seqlen_k": self.context}
        found["attention"] = config_of(
            opmux.explain(opmux.paged_attention, q, k, v, self.offsets, self.lengths, self.table, **bounds)
        )
        return found

    def run(self, configs: dict[str, dict[str, Any]]) -> Tensor:
        """All layers."""
        x, hidden = self.x, self.x
        heads = (HEADS, KV_HEADS, KV_HEADS)
        options = {
            "scale": None, "causal": True, "window": (-1, -1), "softcap": 0.0, "layout": "nhd",
            "max_seqlen_q": 1, "max_seqlen_k": self.context,
        }  # fmt: skip
        for layer in range(LAYERS):
            packed = gemm.linear(x, self.weights["qkv"][layer], None, config=configs["qkv"])
            q, k, v = packed.unflatten(-1, (-1, HEAD_DIM)).split(heads, dim=-2)
            q, k = opmux.apply_rope(q, k, self.cos, self.sin, self.position)
            k_cache, v_cache = self.cache[:, layer, 0], self.cache[:, layer, 1]
            opmux.write_kv_cache(k, v, k_cache, v_cache, self.slots)
            out = paged.paged_attention(
                q, k_cache, v_cache, self.offsets, self.lengths, self.table, None,
                config=configs["attention"], **options,
            )  # fmt: skip
            out = gemm.linear(out.flatten(-2), self.weights["out"][layer], None, config=configs["out"])
            x, hidden = opmux.add_rms_norm(out, hidden, self.norm)
            both = gemm.linear(x, self.weights["gate_up"][layer], None, config=configs["gate_up"])
            out = gemm.linear(opmux.silu_and_mul(both), self.weights["down"][layer], None, config=configs["down"])
            x, hidden = opmux.add_rms_norm(out, hidden, self.norm)
        return x


def config_of(plan: Any) -> dict[str, Any]:
    """The config of what would run."""
    return dict(plan.config)


def variants(base: dict[str, dict[str, Any]], only: str) -> dict[str, Change]:
    """Every change whose label a regular expression finds."""
    found: dict[str, Change] = {}
    for part, (label, config) in itertools.product(WEIGHTS, products().items()):
        if part == "gate_up" and (config["kind"] == "shares" or config["block_m"] < 64):
            continue  # 256 tiles of 64 rows: there is no need to cut
        found[f"{part} {label}"] = (part, config)
    for label, config in attentions().items():
        found[f"attention {label}"] = ("attention", base["attention"] | config)
    return {label: change for label, change in found.items() if re.search(only, label)}


def graph_of(run: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    """Two warm runs on a side stream, then the capture."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def microseconds(graph: torch.cuda.CUDAGraph, repeats: int = 5) -> float:
    """Median time of a replay."""
    taken = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        taken.append(start.elapsed_time(end) * 1e3)
    return statistics.median(taken)


def without_dependent_launch() -> None:
    """Launch in the ordinary way from here on."""
    usual = launching.always

    def always(kernel: Any, arch: Any) -> dict[str, Any]:
        found = {name: value for name, value in usual(kernel, arch).items() if name != "launch_pdl"}
        return found | ({launching.DEPENDENT: False} if launching.DEPENDENT in found else {})

    launching.always = always
    for table in (launching._HANDLES, repeats._repeats):
        table.clear()


def warm(step: Step, only: str, part: int, of: int) -> None:
    """Compile this process's part of the variants, by running them once."""
    for label, (name, config) in list(variants(step.base, only).items())[part::of]:
        try:
            step.run(step.base | {name: config})
        except Exception as error:  # said when it is timed
            print(f"{label}: {type(error).__name__}: {str(error)[:150]}", flush=True)


def main() -> None:
    """Time every variant, then the best of each part together."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("sweep_decode.json"))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--context", type=int, default=2112)
    parser.add_argument("--only", default="", help="only variants whose label this regular expression finds")
    parser.add_argument("--warm", default="")
    parser.add_argument("--dry", action="store_true")
    arguments = parser.parse_args()
    only = arguments.only
    if arguments.dry:
        step = Step(arguments.batch, 64, "cpu")
        print(step.base, len(variants(step.base, only)))
        return
    if not arguments.warm:
        processes = 12
        command = [sys.executable, *sys.argv, "--warm"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        children = [subprocess.Popen([*command, f"{i}/{processes}"], env=environment) for i in range(processes)]
        for child in children:
            child.wait(100)
    step = Step(arguments.batch, arguments.context, "cuda")
    with torch.no_grad():
        if arguments.warm:
            part, of = map(int, arguments.warm.split("/"))
            warm(step, only, part, of)
            return
        result: dict[str, Any] = {"base": step.base, "us": {}}
        base = graph_of(lambda: step.run(step.base))
        wanted = step.run(step.base).float()
        graphs, best = {}, {}
        for label, (name, config) in variants(step.base, only).items():
            try:
                graphs[label] = graph_of(lambda n=name, c=config: step.run(step.base | {n: c}))
                off = (step.run(step.base | {name: config}).float() - wanted).norm() / wanted.norm()
                if not off < 0.06:
                    print(f"{label}: off by {off:.3f}")
                    del graphs[label]
            except Exception as error:  # one variant's failure must not cost the others
                print(f"{label}: {type(error).__name__}: {str(error)[:150]}", flush=True)
        samples: dict[str, list[float]] = {label: [] for label in ("base", *graphs)}
        for _ in range(7):
            for label, graph in (("base", base), *graphs.items()):
                samples[label].append(microseconds(graph))
        times = {label: statistics.median(taken) for label, taken in samples.items()}
        result["us"] = times
        arguments.out.write_text(json.dumps(result, indent=1))
        for part in (*WEIGHTS, "attention"):
            found = sorted((t, label) for label, t in times.items() if label.startswith(part + " "))
            line = " | ".join(f"{label.removeprefix(part + ' ')} {t:.0f}" for t, label in found[:7])
            print(f"{part}: base {times['base']:.0f} us | {line}")
            if found and found[0][0] < times["base"]:
                best[part] = variants(step.base, only)[found[0][1]][1]
        together = graph_of(lambda: step.run(step.base | best))
        print(f"all of the best: {statistics.median(microseconds(together) for _ in range(7)):.0f} us")
        without_dependent_launch()
        ordinary = graph_of(lambda: step.run(step.base))
        for label, graph in (("dependent launch", base), ("without", ordinary)):
            result["us"][label] = statistics.median(microseconds(graph) for _ in range(9))
            print(f"base, {label}: {result['us'][label]:.0f} us")
        off = (step.run(step.base).float() - wanted).norm() / wanted.norm()
        print(f"the same numbers both ways: {off:.5f}")
    arguments.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
