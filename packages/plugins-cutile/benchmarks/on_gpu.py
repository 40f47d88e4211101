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
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

os.environ["OPMUX_PLUGINS"] = "cutile"
sys.path.insert(0, str(Path(__file__).parent))

import torch
from cases import Example, checked, flash, products, scaled_products, timed
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import opmux
from opmux.plugin import Taker, parse_arch, takers
from opmux.testing import fitted, subject
from opmux.testing.cases import gradient_case
from opmux_cutile.attention.configs import ForwardConfig
from opmux_cutile.gates.configs import GatedConfig
from opmux_cutile.launching import TileKernel, recording
from opmux_cutile.norms.configs import NormConfig
from opmux_cutile.plugin import opmux_implementations
from opmux_cutile.prebuilding import compile_into, kernels_of
from opmux_cutile.products.configs import LinearConfig
from opmux_jit import Source
from opmux_jit.cache import bundles, keys

FLUSHED = 1 << 28
"""Bytes written before each timed call: five times the second-level cache."""
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-20}
PROFILE = "small"
OTHERS: dict[str, tuple[object, ...]] = {
    "linear": (
        LinearConfig(256, 128, 64, 8), LinearConfig(256, 256, 64, 8, 2), LinearConfig(128, 128, 128, 8, 2),
        LinearConfig(128, 128, 128, 8),
    ),
    "add_rms_norm": (NormConfig(1, 0, 8), NormConfig(1, 2, 8)),
    "rms_norm": (NormConfig(1, 0, 8),),
    "gelu_and_mul": (GatedConfig(1, 1024, 8), GatedConfig(1, 4096, 4)),
    "scaled_linear": (LinearConfig(256, 128, 128, 8, 2), LinearConfig(64, 256, 128), LinearConfig(128, 128, 128, 0)),
    "attention": (ForwardConfig(128, 128, 8), ForwardConfig(64, 128, 4), ForwardConfig(64, 64, 4, 2)),
}  # fmt: skip
"""By op: configs that are timed beside the heuristic's."""


def taker_of(example: Example, device: str, arch: str) -> Taker | None:
    """The backend's implementation, if it takes the call."""
    tensors = example.make(device)
    found = takers(getattr(opmux, example.op), *tensors, arch=arch, backend="cutile", **example.options)
    return found[0] if found else None


def build(folder: Path, arch: str, workers: int, most_configs: int, seconds: float, ops: Sequence[str]) -> int:
    """Compile what a run launches into a bundle, as much as there is time for; what it already has stays."""
    kernels: list[TileKernel] = []
    until = time.time() + seconds
    for example in checked():
        taker = taker_of(example, "cpu", arch)
        kernels += kernels_of(taker) if taker else []
    for example in [*timed(), *products(), *scaled_products(), *flash()]:
        taker = taker_of(example, "meta", arch)
        if taker is None:
            continue
        for config in timed_configs(taker, most_configs):
            with recording() as launches:
                taker.bound(config)(*taker.call.tensors.values(), **taker.call.options)
            kernels += [kernel for kernel, *_ in launches]
    kernels += conformance_kernels(arch, ops)
    kernels.sort(key=lambda kernel: kernel.op.startswith("attention"))  # those take longest
    sources = {keys.source_key(source): source for kernel in kernels for source in [kernel.source(arch)]}
    (folder / "entries").mkdir(parents=True, exist_ok=True)
    there = set()
    for path in (folder / "entries").iterdir():
        key = path.name.partition("-")[0]
        if key in sources:
            there.add(key)
        else:  # of kernels as they were
            shutil.rmtree(path)
    of_ops = dict(Counter(source.op for key, source in sources.items() if key not in there))
    print(f"{len(sources)} kernels, {len(there)} are there; to compile: {of_ops}", flush=True)
    failed, started = 0, time.time()

    def compile_in_time(source: Source) -> tuple[str, str]:
        if keys.source_key(source) in there:
            return "", ""
        return compile_into(folder / "entries", source) if time.time() < until else ("", "out of time")

    with ThreadPoolExecutor(workers) as pool:
        for _, problem in pool.map(compile_in_time, sources.values()):
            if problem:
                failed += 1
                print(problem[:2000] if problem != "out of time" else "", end="", flush=True)
    bundles.write(folder, [arch], {"purpose": "packages/plugins-cutile/benchmarks/on_gpu.py"})
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{len(sources)} kernels, {failed} failed, {size / 1e6:.1f} MB, {time.time() - started:.0f} s")
    return int(failed > 0)


def timed_configs(taker: Taker, most: int) -> list[object]:
    """The config of the heuristic, then those of `OTHERS` that the space has; or, with `most`, some spread over it."""
    found = list(taker.space()) if most or taker.implementation.op in OTHERS else []
    if not most:
        found = [config for config in found if config in OTHERS.get(taker.implementation.op, ())]
    return list(dict.fromkeys([taker.config(), *found[:: max(1, -(-len(found) // most)) if most else 1]]))


def conformance_kernels(arch: str, ops: Sequence[str]) -> list[TileKernel]:
    """The kernels that the conformance suite launches, found by making its arguments on the CPU."""
    kernels = []
    gpu = SimpleNamespace(type="cuda")
    with mock.patch.object(fitted, "arch_of", return_value=parse_arch(arch)):
        cases = {op: fitted.cases_for("cutile", op, PROFILE, gpu) for op in ops}  # type: ignore[arg-type]
    for op in ops:
        gradient = gradient_case(op)
        for case in (*cases[op], *([gradient] if gradient else [])):
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
        if "quantize" in example.op:  # a code may be its neighbour
            return _codes_apart(found, wanted)
        return "" if torch.equal(found, wanted) else f"{int((found != wanted).sum())} of {found.numel()} differ"
    a, b = found.double(), wanted.double()
    # A sum in another order is off by some roundings of its largest terms.
    largest = float(b[b.isfinite()].abs().max()) if b.isfinite().any() else 0.0
    room = 2.0**-18 * largest if re.search("linear|norm_backward|weight_grad", example.op) else 1e-6
    if example.op.startswith("scaled_"):  # the matrix units keep 14 bits of a short sum, and some are added
        room = 2.0**-12 * largest
    if "quantize" in example.op:  # scales
        room = 4e-7 * largest
    if example.op.startswith(("attention", "paged_attention")):  # probabilities are rounded to the values' dtype
        room = 1e-5 * max(largest, 1.0) if found.dtype == torch.float32 else ROUNDING[found.dtype] * largest
    wrong = ((a - b).abs() > ROUNDING[found.dtype] * 2 * b.abs() + room) | (a.isnan() != b.isnan())
    if not bool(wrong.any()):
        return ""
    worst = int((a - b).abs().nan_to_num(float("inf")).flatten().argmax())
    return (
        f"{int(wrong.sum())} of {wrong.numel()} wrong, {int(a.isnan().sum())} NaN; at {worst} of the flat result "
        f"{float(a.flatten()[worst]):.6g}, expected {float(b.flatten()[worst]):.6g}"
    )


def _codes_apart(found: Tensor, wanted: Tensor) -> str:
    """What is wrong with codes, of which one in five hundred may be the next one.

    That many of bfloat16 lie in the middle between two codes, where the last bit of a scale decides.
    """
    away = (found.view(torch.int8).int() - wanted.view(torch.int8).int()).abs()
    wrong = int((away > 1).sum()) + (int((away > 0).sum()) > max(1, away.numel() // 500))
    return f"{int((away > 0).sum())} of {away.numel()} codes differ, the worst by {int(away.max())}" if wrong else ""


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
        taker = takers(opmux.linear, x, w, None, arch=arch, backend="cutile")[0]
        for place, config in enumerate(timed_configs(taker, most_configs)):
            try:
                run = taker.bound(config)
                away = float((run(x, w, None).float() - wanted.float()).abs().max() / wanted.float().abs().max())
                cublas = milliseconds(lambda: torch.nn.functional.linear(x, w), flush)  # noqa: B023
                took = milliseconds(lambda: run(x, w, None), flush)  # noqa: B023
                print(f"PRODUCT {example.text} {'heuristic' if place == 0 else ''} {took * 1e3:.1f} us, "
                      f"{work / took:.0f} TFLOPS, cuBLASLt {work / cublas:.0f}, ratio {cublas / took:.3f}, "
                      f"off by {away:.1e}, {config}", flush=True)  # fmt: skip
            except Exception as error:
                print(f"     {config}: {type(error).__name__}: {str(error)[:300]}", flush=True)


def time_scaled(until: float, arch: str, most_configs: int) -> None:
    """Time products of 8-bit codes, those with scales of rows beside cuBLASLt's of the same turn."""
    flush = torch.empty(FLUSHED, dtype=torch.int8, device="cuda")
    for example in scaled_products():
        if time.time() > until:
            print("SCALED: out of time")
            return
        try:
            x, w, x_scale, w_scale, _ = example.make("cuda")
            assert x is not None
            assert w is not None
            assert x_scale is not None
            assert w_scale is not None
            work = 2e-9 * len(x) * w.numel()
            theirs = partial(torch._scaled_mm, x, w.t(), x_scale, w_scale.t(), out_dtype=torch.bfloat16)
            (taker, *_) = takers(
                opmux.scaled_linear, *example.make("meta"), arch=arch, backend="cutile", **example.options
            )
            for place, config in enumerate(timed_configs(taker, most_configs)):
                call = partial(taker.bound(config), x, w, x_scale, w_scale, None, **taker.call.options)
                said = ""
                if "rows" in example.text:
                    peer = milliseconds(theirs, flush, 7)
                    away = float((call().float() - theirs().float()).abs().max() / theirs().float().abs().max())
                    said = f", cuBLASLt {work / peer:.0f} TFLOPS, off by {away:.1e}"
                took = milliseconds(call, flush, 7)
                print(f"SCALED {example.text} {'heuristic' if place == 0 else ''} {took * 1e3:.1f} us, "
                      f"{work / took:.0f} TFLOPS{said}, {config}", flush=True)  # fmt: skip
        except Exception as error:
            print(f"SCALED {example.text}: {type(error).__name__}: {str(error)[:300]}", flush=True)


def time_attention(until: float, arch: str, most_configs: int) -> None:
    """Time attention in some configs, beside cuDNN's of the same turn."""
    flush = torch.empty(FLUSHED, dtype=torch.int8, device="cuda")
    for example in flash():
        if time.time() > until:
            print("ATTENTION: out of time")
            return
        q, k, v, _ = example.make("cuda")
        assert q is not None
        assert k is not None
        assert v is not None
        batch, seq, heads, dim = q.shape
        causal = bool(example.options["causal"])
        work = 4e-9 * batch * heads * seq * seq * dim / (2 if causal else 1)

        def peer(q: Tensor = q, k: Tensor = k, v: Tensor = v, causal: bool = causal) -> Tensor:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return torch.nn.functional.scaled_dot_product_attention(
                    q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=causal, enable_gqa=True
                ).transpose(1, 2)

        try:
            wanted = peer()
            (taker, *_) = takers(opmux.attention, q, k, v, None, arch=arch, backend="cutile", **example.options)
        except Exception as error:
            print(f"ATTENTION {example.text}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            continue
        for place, config in enumerate(timed_configs(taker, most_configs)):
            try:
                run = taker.bound(config)
                call = partial(run, q, k, v, None, **taker.call.options)
                away = float((call().float() - wanted.float()).abs().max())
                cudnn, took = milliseconds(peer, flush, 7), milliseconds(call, flush, 7)
                print(f"ATTENTION {example.text} {'heuristic' if place == 0 else ''} {took * 1e3:.1f} us, "
                      f"{work / took:.0f} TFLOPS, cuDNN {work / cudnn:.0f}, ratio {cudnn / took:.3f}, "
                      f"off by {away:.1e}, {config}", flush=True)  # fmt: skip
            except Exception as error:
                print(f"     {config}: {type(error).__name__}: {str(error)[:300]}", flush=True)


def conform(seconds: float, ops: Sequence[str]) -> None:
    """The conformance suite, in a process of its own, as long as there is time."""
    command = [sys.executable, "-m", "opmux", "conformance", "cutile", "--profile", PROFILE, "--jobs", "8"]
    command += [f"--op={op}" for op in ops]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=max(seconds, 5), check=False)
        said = done.stdout + done.stderr
    except subprocess.TimeoutExpired as error:
        said = (error.stdout or b"").decode() + "\nCONFORMANCE: out of time"
    told = [line[:300] for line in said.splitlines() if line and not line.startswith(("    ", "  Traceback"))]
    print("CONFORMANCE", "\n".join(told)[-14000:], flush=True)


def main() -> int:
    """Build or run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--build", type=Path)
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument(
        "--configs", type=int, default=0, help="configs, spread over each space, that are timed; 0: few that are named"
    )
    parser.add_argument("--build-seconds", type=float, default=3600)
    parser.add_argument("--ops", help="ops whose conformance is run, with commas between; all without")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    ops = given.ops.split(",") if given.ops else sorted({record.op for record in opmux_implementations()})
    if given.build:
        return build(given.build, given.arch, given.workers, given.configs, given.build_seconds, ops)
    began = time.time()
    with tempfile.TemporaryDirectory() as place:
        # A copy of this user's own: a bundle that belongs to somebody else is not read.
        shutil.copytree(given.bundle, f"{place}/bundle", copy_function=shutil.copyfile)
        for path in Path(place).rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        os.environ |= {"OPMUX_BUNDLES": f"{place}/bundle", "OPMUX_NO_JIT": "1", "OPMUX_CACHE": f"{place}/cache"}
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
        wrong = check_all(began + given.seconds * 0.25)
        time_scaled(began + given.seconds * 0.3, given.arch, given.configs)
        time_attention(began + given.seconds * 0.38, given.arch, given.configs)
        time_products(began + given.seconds * 0.45, given.arch, given.configs)
        time_all(began + given.seconds * 0.6, given.arch, given.configs)
        conform(began + given.seconds - time.time(), ops)
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
