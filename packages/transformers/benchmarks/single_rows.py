"""One row times the weights of a model: torch's product and `opmux.linear`, each in a chain that memory has to feed.

Work: 2 * n * k flops and 2 * n * k bytes, so memory bounds it. Each chain multiplies by many weights of one size, more
bytes than a GPU's L2 holds, in a CUDA graph; weights and rows are random. The chains of a size take turns in rounds,
and the median of each is printed, per product.

    python benchmarks/single_rows.py [--rows 1 2 8] [--json FILE]
"""

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

import opmux

WEIGHTS = (
    (512, 2048), (4096, 2048), (2048, 4096), (1024, 4096), (4096, 4096), (14336, 4096), (4096, 14336), (1024, 2560),
    (4096, 2560), (2560, 4096), (9728, 2560), (2560, 9728),
)  # fmt: skip
"""n and k of Qwen3 30B-A3B, Llama 8B and Qwen3 4B."""
BYTES = 400e6
"""Of the weights of a chain, at least."""
ROUNDS = 9


def chain(product: Callable[[Tensor, Tensor], Tensor], x: Tensor, weights: list[Tensor]) -> Callable[[], float]:
    """What replays the products of a row by all weights, and returns the time of one in microseconds."""

    def run() -> None:
        for weight in weights:
            product(x, weight)

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()

    def replay() -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3 / len(weights)

    replay()
    return replay


def measure(rows: int, n: int, k: int) -> dict[str, float]:
    """The median time of a product, in microseconds, by who computes it."""
    count = max(8, int(BYTES / (2 * n * k)))
    weights = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for _ in range(count)]
    x = torch.randn(rows, k, device="cuda", dtype=torch.bfloat16)
    chains = {"torch": chain(functional.linear, x, weights), "opmux": chain(opmux.linear, x, weights)}
    times: dict[str, list[float]] = {name: [] for name in chains}
    for _ in range(ROUNDS):
        for name, replay in chains.items():
            times[name].append(replay())
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = []
    with torch.no_grad():
        for rows in arguments.rows:
            for n, k in WEIGHTS:
                found = measure(rows, n, k)
                results.append({"rows": rows, "n": n, "k": k, **found})
                ratio = found["torch"] / found["opmux"]
                print(f"{rows} x {k} by {n}: torch {found['torch']:.2f} us, opmux {found['opmux']:.2f}, {ratio:.2f}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"device": torch.cuda.get_device_name(), "products": results}, indent=1))


if __name__ == "__main__":
    main()
