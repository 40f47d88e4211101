"""Time from the start of a process to the first token of a patched Llama 1B, and to that of a second batch shape.

``python benchmarks/first_token.py --out results.json [--limit SECONDS] [--tiny]``. Each row is a process of its own:
with empty caches, with the caches that the first one filled, and with empty caches but a bundle that `opmux prebuild`
made of the recorded calls, those of patching among them. Weights are random. The seconds begin with the process, before
anything is imported; ``compiled`` counts the kernels that a process had to compile itself.
"""

import time

STARTED = time.perf_counter()

import argparse  # noqa: E402
import contextlib  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

PROMPTS = ((1, 128), (4, 200))
"""Batch and tokens of the first prompt, and of the second batch shape."""


def serve(tiny: bool, shapes: str | None) -> dict[str, float]:
    """Seconds from the start of this process to each step."""
    import torch
    from models import Row, Settings

    import opmux

    seconds = {"imports": time.perf_counter() - STARTED}

    def done(step: str) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        seconds[step] = time.perf_counter() - STARTED

    class Timed(Row):
        def patch_model(self) -> None:
            done("model")
            super().patch_model()
            done("patch")

    recording = contextlib.nullcontext() if shapes is None else opmux.trace(record_shapes=shapes)
    with recording:  # patching too, which makes calls to judge what it replaces
        row = Timed("opmux", "llama-1b", Settings(tiny, 1))
        for name, (batch, tokens) in zip(("first token", "second batch shape"), PROMPTS, strict=True):
            before = time.perf_counter()
            with torch.no_grad():
                row.model.generate(row.tokens(batch, tokens), max_new_tokens=2, do_sample=False)
            done(name)
            seconds[f"{name}, alone"] = time.perf_counter() - before
    return {step: round(value, 3) for step, value in seconds.items()}


class Rows:
    """The processes: their caches, and the time that is left."""

    def __init__(self, folder: Path, limit: float, tiny: bool) -> None:
        self.folder, self.tiny, self.until = folder, tiny, time.monotonic() + limit
        self.found: dict[str, Any] = {}

    def run(self, name: str, command: list[str], cache: str, **environment: str) -> Any:
        """What a command prints as JSON, after whatever else it says; None where it prints none or time is over.

        `opmux prebuild` exits with 1 where a kernel cannot be built, and its bundle has the others.
        """
        own = {
            "TRITON_CACHE_DIR": str(self.folder / cache / "triton"),
            "OPMUX_CACHE": str(self.folder / cache / "opmux"),
        }
        left = self.until - time.monotonic()
        started = time.monotonic()
        try:
            done = subprocess.run(
                command, env={**os.environ, **own, **environment}, timeout=max(1.0, left), capture_output=True,
                text=True, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            print(f"{name}: the time is over", flush=True)
            return None
        print(f"{name}: exit {done.returncode}, {time.monotonic() - started:.1f} s", flush=True)
        if done.returncode:
            print(done.stderr[-2000:], flush=True)
        if "{" not in done.stdout:
            return None
        return json.loads(done.stdout[done.stdout.index("{") :])

    def row(self, name: str, cache: str, **environment: str) -> None:
        """Serve in a process of its own."""
        command = [sys.executable, __file__, "--serve", *(["--tiny"] if self.tiny else [])]
        before = self.compiled(cache)
        found = self.run(name, command, cache, **environment)
        if found is not None:
            new = self.compiled(cache) - before
            self.found[name] = {**found, "compiled": len(new)}
            print(f"{name}: {len(new)} kernels compiled: {' '.join(sorted(new))[:1000]}", flush=True)

    def compiled(self, cache: str) -> set[str]:
        """The kernels in a cache of Triton's, as folder and name."""
        found = (self.folder / cache / "triton").glob("*/*.cubin")
        return {f"{path.parent.name[:6]}/{path.stem}" for path in found}


def measure(limit: float, tiny: bool) -> dict[str, Any]:
    """Every row that the time allows."""
    with tempfile.TemporaryDirectory(prefix="first-token-") as made:
        rows = Rows(Path(made), limit, tiny)
        rows.row("cold", "first")
        rows.row("warm", "first")
        shapes, bundle = str(rows.folder / "shapes.json"), str(rows.folder / "bundle")
        serving = [sys.executable, __file__, "--serve", "--shapes", shapes, *(["--tiny"] if tiny else [])]
        if rows.run("calls recorded", serving, "first") is not None:
            import torch

            from opmux.plugin import device_arch

            arch = device_arch("cuda", 0).name if torch.cuda.is_available() else "sm_90"
            command = [sys.executable, "-m", "opmux", "prebuild", "--arch", arch, "--backend", "triton", "--json"]
            started = time.monotonic()
            told = rows.run("bundle made", [*command, "--shapes", shapes, "--out", bundle], "ahead")
            if told is not None:
                rows.found["prebuild"] = {"seconds": round(time.monotonic() - started, 1), **told["kernels"]}
                rows.row("bundle", "second", OPMUX_BUNDLES=bundle)
        return rows.found


def main() -> None:
    """Serve, or have processes serve."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--limit", type=float, default=240.0)
    parser.add_argument("--tiny", action="store_true", help="a small model on the CPU, to see that everything runs")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--shapes", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        print(json.dumps(serve(arguments.tiny, arguments.shapes)))
        return
    found = measure(arguments.limit, arguments.tiny)
    for name, row in found.items():
        print(f"{name:10} " + "  ".join(f"{step} {value}" for step, value in row.items()), flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
