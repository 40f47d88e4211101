"""Every op of the backend on a GPU, held to the references and timed.

Nothing is compiled on the GPU's machine, which needs no compiler. First, on any machine with one:

    python packages/plugins-cutile/benchmarks/on_gpu.py --build DIR --arch sm_90

compiles what the run will launch, conformance too, into the bundle DIR. Then, on the machine with the GPU:

    python packages/plugins-cutile/benchmarks/on_gpu.py --bundle DIR --seconds 90

prints a line for each check and each time. Times are medians with a cold second-level cache; those of ops that move
data are compared with a copy of as many bytes. Ends with 1 if a result is wrong or a call fails.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

os.environ["OPMUX_PLUGINS"] = "cutile"
sys.path.insert(0, str(Path(__file__).parent))

import torch
from cases import Example, checked, products, timed
from torch import Tensor

import opmux
from opmux.plugin import Taker, takers
from opmux.testing import subject
from opmux.testing.cases import cases_of
from opmux_cutile.launching import TileKernel, recording
from opmux_cutile.plugin import opmux_implementations
from opmux_cutile.prebuilding import compile_into, kernels_of
from opmux_cutile.products.configs import LinearConfig
from opmux_jit.cache import bundles, keys

FLUSHED = 1 << 28
"""Bytes written before each timed call: five times the second-level cache."""
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-20}
PROFILE = "small"


def taker_of(example: Example, device: str, arch: str) -> Taker | None:
    """The backend's implementation, if it takes the call."""
    tensors = example.make(device)
    found = takers(getattr(opmux, example.op), *tensors, arch=arch, backend="cutile", **example.options)
    return found[0] if found else None


def build(folder: Path, arch: str, workers: int, most_configs: int) -> int:
    """Compile what a run launches into a bundle."""
    kernels: list[TileKernel] = []
    for example in checked():
        taker = taker_of(example, "cpu", arch)
        kernels += kernels_of(taker) if taker else []
    for example in [*timed(), *products()]:
        taker = taker_of(example, "meta", arch)
        if taker is None:
            continue
        for config in timed_configs(taker, most_configs):
            with recording() as launches:
                taker.bound(config)(*taker.call.tensors.values(), **taker.call.options)
            kernels += [kernel for kernel, *_ in launches]
    kernels += conformance_kernels(arch)
    sources = {keys.source_key(source): source for kernel in kernels for source in [kernel.source(arch)]}
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "entries").mkdir(parents=True)
    failed, started = 0, time.time()
    with ThreadPoolExecutor(workers) as pool:
        for _, problem in pool.map(partial(compile_into, folder / "entries"), sources.values()):
            if problem:
                failed += 1
                print(problem[:2000], flush=True)
    bundles.write(folder, [arch], {"purpose": "packages/plugins-cutile/benchmarks/on_gpu.py"})
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{len(sources)} kernels, {failed} failed, {size / 1e6:.1f} MB, {time.time() - started:.0f} s")
    return int(failed > 0)


def timed_configs(taker: Taker, most: int) -> list[object]:
    """The config of the heuristic, then some of the space, spread over it; of products, large and clustered tiles."""
    found = [config for config in taker.space() if not isinstance(config, LinearConfig) or _promising(config, taker)]
    step = 1 if not most or (found and isinstance(found[0], LinearConfig)) else max(1, -(-len(found) // most))
    return list(dict.fromkeys([taker.config(), *(found[::step] if most else [])]))


def _promising(config: LinearConfig, taker: Taker) -> bool:
    if taker.call.tensors["x"].shape[0] <= 128:
        return config.block_m <= 128 and config.warps == 0 and config.block_k >= 128 and config.ctas == 1
    return config.block_m * config.block_n >= 16384 and config.block_m >= 128 and config.warps == 8


def conformance_kernels(arch: str) -> list[TileKernel]:
    """The kernels that the conformance suite launches, found by making its arguments on the CPU."""
    kernels = []
    for op in sorted({record.op for record in opmux_implementations()}):
        for case in cases_of(op, PROFILE, gpu=True):
            try:
                given = subject.prepare("cutile", case, torch.device("cpu"))
                tensors = [given.tensors[t.name] for t in given.op.signature.tensors]
                options = given.arguments.options
                for taker in takers(getattr(opmux, op), *tensors, arch=arch, backend="cutile", **options):
                    kernels += kernels_of(taker)
            except Exception as error:
                print(f"conformance {op} {case.id}: {type(error).__name__}: {str(error)[:200]}", flush=True)
    return kernels


def outputs(example: Example, backend: str, device: str) -> list[Tensor]:
    """The results of a call; of a mutating op, the tensors that it changed."""
    tensors = example.make(device)
    found = getattr(opmux, example.op)(*tensors, backend=backend, **example.options)
    if found is None:
        return [tensor for tensor in tensors if tensor is not None]
    return list(found) if isinstance(found, tuple) else [found]


def difference(example: Example, found: Tensor, wanted: Tensor) -> str:
    """What is wrong with a result, or nothing: it may be one rounding from that of the reference."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return f"is {found.dtype}{list(found.shape)}, expected {wanted.dtype}{list(wanted.shape)}"
    if found.dtype not in ROUNDING:
        return "" if torch.equal(found, wanted) else f"{int((found != wanted).sum())} of {found.numel()} differ"
    a, b = found.double(), wanted.double()
    # A sum in another order is off by some roundings of its largest terms.
    room = 1e-6 if example.op != "linear" else 2.0**-18 * float(b.abs().max())
    wrong = ((a - b).abs() > ROUNDING[found.dtype] * 2 * b.abs() + room) | (a.isnan() != b.isnan())
    if not bool(wrong.any()):
        return ""
    worst = int((a - b).abs().nan_to_num(float("inf")).flatten().argmax())
    return (
        f"{int(wrong.sum())} of {wrong.numel()} wrong, {int(a.isnan().sum())} NaN; at {worst} of the flat result "
        f"{float(a.flatten()[worst]):.6g}, expected {float(b.flatten()[worst]):.6g}"
    )


def check_all(until: float) -> int:
    """Compare every checked call with its reference; returns how many are wrong."""
    wrong = done = 0
    for example in checked():
        if time.time() > until:
            print("CHECKS: out of time")
            break
        try:
            found = outputs(example, "cutile", "cuda")
            torch.cuda.synchronize()
            wanted = outputs(example, "reference", "cuda")
            said = "; ".join(filter(None, (difference(example, f, w) for f, w in zip(found, wanted, strict=True))))
        except Exception as error:
            said = f"{type(error).__name__}: {str(error)[:400]}"
        done += 1
        wrong += bool(said)
        if said:
            print(f"WRONG {example.op} {example.text}: {said}", flush=True)
        if "CUDA error" in said or "illegal" in said:
            print("CHECKS: the device is lost")
            break
    print(f"CHECKS: {done - wrong} of {done} right", flush=True)
    return wrong


def milliseconds(call: Callable[[], object], flush: Tensor, rounds: int = 15) -> float:
    """The median time of a call on the GPU, its operands not in the second-level cache."""
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(rounds)]
    call()
    for start, end in pairs:
        flush.zero_()
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return sorted(start.elapsed_time(end) for start, end in pairs)[rounds // 2]


def moved_bytes(tensors: list[Tensor | None], found: object) -> int:
    """Bytes of what a call reads and writes."""
    results = found if isinstance(found, tuple) else (found,)
    return sum(t.numel() * t.element_size() for t in (*tensors, *results) if isinstance(t, Tensor))


def time_all(until: float, arch: str, most_configs: int) -> None:
    """Time calls in the config of the heuristic and in others, beside a copy of as many bytes."""
    flush = torch.empty(FLUSHED, dtype=torch.int8, device="cuda")
    for example in timed():
        if time.time() > until:
            print("TIMES: out of time")
            return
        try:
            _time_one(example, arch, most_configs, flush)
        except Exception as error:
            print(f"TIME {example.op} {example.text}: {type(error).__name__}: {str(error)[:400]}", flush=True)


def _time_one(example: Example, arch: str, most_configs: int, flush: Tensor) -> None:
    tensors = example.make("cuda")
    found = getattr(opmux, example.op)(*tensors, backend="cutile", **example.options)
    torch.cuda.synchronize()
    size = moved_bytes(tensors, found)
    there, here = (torch.empty(size // 2, dtype=torch.int8, device="cuda") for _ in range(2))
    copy = milliseconds(lambda: there.copy_(here), flush)
    (taker, *_) = takers(getattr(opmux, example.op), *tensors, arch=arch, backend="cutile", **example.options)
    lines = []
    for config in timed_configs(taker, most_configs):
        run = taker.bound(config)
        lines.append((milliseconds(lambda: run(*tensors, **taker.call.options), flush), config))  # noqa: B023
    first = lines[0][0]
    print(f"TIME {example.op} {example.text}: {first * 1e3:.1f} us, {size / first / 1e9:.3f} TB/s, copy "
          f"{size / copy / 1e9:.3f} TB/s, ratio {copy / first:.3f}, config {lines[0][1]}", flush=True)  # fmt: skip
    for took, config in sorted(lines[1:], key=lambda line: line[0])[:3]:
        print(f"     {took * 1e3:.1f} us, ratio {copy / took:.3f}, {config}", flush=True)


def time_products(until: float, arch: str, most_configs: int) -> None:
    """Time products in the config of the heuristic and in others, beside cuBLASLt's; wrong ones are said."""
    flush = torch.empty(FLUSHED, dtype=torch.int8, device="cuda")
    for example in products():
        if time.time() > until:
            print("PRODUCTS: out of time")
            return
        x, w, _ = example.make("cuda")
        assert x is not None
        assert w is not None
        wanted = torch.nn.functional.linear(x, w)
        work = 2e-9 * x.shape[0] * w.numel()
        cublas = milliseconds(lambda: torch.nn.functional.linear(x, w), flush)  # noqa: B023
        print(f"PRODUCT {example.text}: cuBLASLt {cublas * 1e3:.1f} us, {work / cublas:.0f} TFLOPS", flush=True)
        taker = takers(opmux.linear, x, w, None, arch=arch, backend="cutile")[0]
        for place, config in enumerate(timed_configs(taker, most_configs)):
            try:
                run = taker.bound(config)
                away = float((run(x, w, None).float() - wanted.float()).abs().max() / wanted.float().abs().max())
                took = milliseconds(lambda: run(x, w, None), flush)  # noqa: B023
                print(f"     {'heuristic' if place == 0 else ''} {took * 1e3:.1f} us, {work / took:.0f} TFLOPS, ratio "
                      f"{cublas / took:.3f}, off by {away:.1e}, {config}", flush=True)  # fmt: skip
            except Exception as error:
                print(f"     {config}: {type(error).__name__}: {str(error)[:300]}", flush=True)


def conform(seconds: float) -> None:
    """The conformance suite, in a process of its own, as long as there is time."""
    command = [sys.executable, "-m", "opmux", "conformance", "cutile", "--profile", PROFILE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=max(seconds, 5), check=False)
        said = done.stdout + done.stderr
    except subprocess.TimeoutExpired as error:
        said = (error.stdout or b"").decode() + "\nCONFORMANCE: out of time"
    print("CONFORMANCE", said[-6000:], flush=True)


def main() -> int:
    """Build or run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--build", type=Path)
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--configs", type=int, default=8, help="configs of each space that are timed; of products all")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    if given.build:
        return build(given.build, given.arch, given.workers, given.configs)
    began = time.time()
    with tempfile.TemporaryDirectory() as place:
        # A copy of this user's own: a bundle that belongs to somebody else is not read.
        shutil.copytree(given.bundle, f"{place}/bundle", copy_function=shutil.copyfile)
        for path in Path(place).rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        os.environ |= {"OPMUX_BUNDLES": f"{place}/bundle", "OPMUX_NO_JIT": "1", "OPMUX_CACHE": f"{place}/cache"}
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
        wrong = check_all(began + given.seconds * 0.4)
        time_products(began + given.seconds * 0.6, given.arch, given.configs)
        time_all(began + given.seconds * 0.7, given.arch, given.configs)
        conform(began + given.seconds - time.time())
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
