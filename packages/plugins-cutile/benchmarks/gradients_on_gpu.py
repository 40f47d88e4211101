"""Gradients of products and attention, and products of groups, on a GPU: held to the references and timed.

As `on_gpu.py`: first ``--build DIR`` on any machine with the compiler, then ``--bundle DIR`` where the GPU is. Prints a
line for each check that fails, and the times of each config beside those of torch.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

os.environ["OPMUX_PLUGINS"] = "cutile"
sys.path.insert(0, str(Path(__file__).parent))

import torch
from cases import BF16, FLASH, Example, codes, drawn, scales
from gradient_cases import GROUPS, PRODUCTS, checked, even
from on_gpu import FLUSHED, difference, milliseconds, outputs
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import opmux
from opmux.plugin import Taker, takers
from opmux_cutile.attention.backward_configs import AttentionBackwardConfig
from opmux_cutile.attention.configs import AttentionConfig
from opmux_cutile.gates.configs import GatedConfig
from opmux_cutile.launching import TileKernel, recording
from opmux_cutile.prebuilding import compile_into, kernels_of
from opmux_cutile.products.backward_configs import LinearBackwardConfig
from opmux_cutile.products.configs import LinearConfig
from opmux_jit.cache import bundles, keys

Peer = Callable[[list[Any]], Callable[[], object] | None]


class Timed:
    """A call that is timed: an example, configs beside the heuristic's, the work in 1e12 operations, and torch's."""

    def __init__(self, example: Example, configs: tuple[object, ...], work: float, peer: Peer) -> None:
        self.example, self.configs, self.work, self.peer = example, configs, work, peer

    def taker(self, device: str, arch: str) -> tuple[Taker, list[Any]]:
        """The backend's implementation, and the tensors."""
        tensors = self.example.make(device)
        op = getattr(opmux, self.example.op)
        (taker, *_) = takers(op, *tensors, arch=arch, backend="cutile", **self.example.options)
        return taker, tensors

    def all_configs(self, taker: Taker, heuristics: bool) -> list[object]:
        """Those that are timed: the heuristic's, and others unless only that is to be."""
        return list(dict.fromkeys([taker.config(), *(() if heuristics else self.configs)]))


def timed() -> Iterator[Timed]:
    """The calls, the most important first."""
    yield from _attention()
    yield from _products()
    yield from _groups()
    yield from _squares()


def _products() -> Iterator[Timed]:
    wide = LinearConfig(128, 256, 64, 8), LinearConfig(256, 128, 64, 8), LinearConfig(256, 256, 64, 8, 2)
    for m, n, k in PRODUCTS:
        for name, mask in (("x", (True, False, False)), ("w", (False, True, False))):
            yield Timed(
                Example("linear_backward", f"of {name}, {m} tokens, n {n}, k {k}",
                        lambda d, m=m, n=n, k=k: [drawn(d, m, n), drawn(d, m, k), drawn(d, n, k)],  # type: ignore[misc]
                        {"output_mask": mask}),
                tuple(LinearBackwardConfig(tile, tile) for tile in wide),
                2e-12 * m * n * k,
                (lambda t: lambda: t[0] @ t[2]) if mask[0] else (lambda t: lambda: t[0].t() @ t[1]),
            )  # fmt: skip


def _attention() -> Iterator[Timed]:
    tile = AttentionConfig
    for batch, seq, heads, kv_heads, dim, causal in FLASH:
        options: dict[str, Any] = {"causal": causal}
        if dim == 128:
            keys_tiles, query_tiles = [tile(64, 128, 8)], [tile(128, 64, 8), tile(128, 128, 8)]
        else:
            keys_tiles, query_tiles = [tile(64, 128, 8), tile(64, 64, 4)], [tile(128, 64, 8), tile(128, 128, 8)]
        for name, mask in (("keys", (False, True, True, False)), ("queries", (True, False, False, False)),
                           ("all", (True, True, True, False))):  # fmt: skip
            tiles = [AttentionBackwardConfig(a, a, b) for a in keys_tiles for b in query_tiles]
            found = {"keys": tiles[:: len(query_tiles)], "queries": tiles[: len(query_tiles)], "all": tiles[:0]}[name]
            share = {"keys": 4 / 5, "queries": 3 / 5, "all": 1}[name]
            yield Timed(
                Example(
                    "attention_backward",
                    f"of {name}, {batch}x{seq}x{heads}/{kv_heads}x{dim}{' causal' if causal else ''}",
                    lambda d, s=(seq, seq, heads, kv_heads, dim, dim), b=batch: _large(d, b, s),  # type: ignore[misc]
                    options | {"output_mask": mask},
                ),
                tuple(found),
                1e-11 * batch * heads * seq * seq * dim * share / (2 if causal else 1),
                partial(_cudnn, causal) if name == "all" else lambda t: None,
            )


def _large(device: str, batch: int, sizes: tuple[int, ...]) -> list[Tensor | None]:
    seq, _, heads, kv_heads, dim, _ = sizes
    q, k, v = (drawn(device, batch, seq, h, dim) for h in (heads, kv_heads, kv_heads))
    grad, out = drawn(device, batch, seq, heads, dim).flip(1), drawn(device, batch, seq, heads, dim).flip(0)
    return [grad, q, k, v, out, torch.full((batch, heads, seq), 9.0, device=device), None, None]


def _cudnn(causal: bool, tensors: list[Any]) -> Callable[[], object]:
    grad, q, k, v = (t.detach().transpose(1, 2) for t in tensors[:4])
    leaves = [t.requires_grad_() for t in (q, k, v)]
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        out = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=causal, enable_gqa=True)
    return lambda: torch.autograd.grad(out, leaves, grad, retain_graph=True)


def _groups() -> Iterator[Timed]:
    wide = LinearConfig(128, 128, 64, 8), LinearConfig(128, 256, 64, 8), LinearConfig(256, 128, 64, 8)
    coded = LinearConfig(128, 128, 128, 8), LinearConfig(64, 128, 128)
    for groups, rows, n, k in GROUPS:
        work = 2e-12 * rows * n * k
        text = f"{groups} groups, {rows} rows, n {n}, k {k}"
        sizes = even(groups, rows)
        yield Timed(
            Example("grouped_linear", text,
                    lambda d, r=sizes, n=n, k=k: [drawn(d, sum(r), k), drawn(d, len(r), n, k), _starts(d, r), None]),  # type: ignore[misc]
            wide, work,
            lambda t: lambda: torch._grouped_mm(t[0], t[1].transpose(1, 2), offs=t[2][1:]),
        )  # fmt: skip
        for kind in ("rows", "blocks"):
            blocks = -(-k // 128)
            of_x, of_w = ((rows, 1), (n, 1)) if kind == "rows" else ((rows, blocks), (n // 128, blocks))
            yield Timed(
                Example("scaled_grouped_linear", f"{text}, scales of {kind}",
                        lambda d, r=sizes, n=n, k=k, a=of_x, b=of_w: [  # type: ignore[misc]
                            codes(d, sum(r), k), codes(d, len(r), n, k), _starts(d, r), scales(d, *a),
                            scales(d, len(r), *b), None],
                        {"out_dtype": BF16}),
                coded, work,
                (lambda t: lambda: torch._scaled_grouped_mm(
                    t[0], t[1].transpose(1, 2), t[3].view(-1), t[4].view(len(t[4]), -1), offs=t[2][1:],
                    out_dtype=BF16)) if kind == "rows" else (lambda t: None),
            )  # fmt: skip


def _squares() -> Iterator[Timed]:
    for block in ((128, 128), (-1, -1)):
        yield Timed(
            Example("quantize", f"16384x8192 {block} beside a copy of as many bytes", lambda d: [drawn(d, 16384, 8192)],
                    {"dtype": torch.float8_e4m3fn, "block": block}),
            tuple(GatedConfig(rows, 128, occupancy) for rows in (16, 32) for occupancy in (0, 4)),
            16384 * 8192 * 3e-12, _copy,
        )  # fmt: skip


def _copy(tensors: list[Any]) -> Callable[[], object]:
    there, here = (tensors[0].new_empty(tensors[0].numel() * 3 // 4) for _ in range(2))
    return lambda: there.copy_(here)


def _starts(device: str, rows: tuple[int, ...]) -> Tensor:
    return torch.tensor([0, *rows], device=device).cumsum(0).to(torch.int32)


def build(folder: Path, arch: str, workers: int, seconds: float, heuristics: bool) -> int:
    """Compile what a run launches, the checks' kernels first, as much as there is time for; what is there stays."""
    kernels: list[TileKernel] = []
    until = time.time() + seconds
    for example in checked():
        found = takers(getattr(opmux, example.op), *example.make("cpu"), arch=arch, backend="cutile", **example.options)
        kernels += kernels_of(found[0]) if found else []
    for one in timed():
        taker, tensors = one.taker("meta", arch)
        for config in one.all_configs(taker, heuristics):
            with recording() as launches:
                taker.bound(config)(*tensors, **taker.call.options)
            kernels += [kernel for kernel, *_ in launches]
    sources = {keys.source_key(source): source for kernel in kernels for source in [kernel.source(arch)]}
    (folder / "entries").mkdir(parents=True, exist_ok=True)
    there = {path.name.partition("-")[0] for path in (folder / "entries").iterdir()}
    for path in (folder / "entries").iterdir():
        if path.name.partition("-")[0] not in sources:  # of kernels as they were
            shutil.rmtree(path)
    wanted = [source for key, source in sources.items() if key not in there]
    print(f"{len(sources)} kernels, {len(wanted)} to compile", flush=True)

    def compile_in_time(source: Any) -> str:
        return compile_into(folder / "entries", source)[1] if time.time() < until else "out of time"

    with ThreadPoolExecutor(workers) as pool:
        problems = [problem for problem in pool.map(compile_in_time, wanted) if problem]
    bundles.write(folder, [arch], {"purpose": "packages/plugins-cutile/benchmarks/gradients_on_gpu.py"})
    print(f"{len(problems)} not compiled: {sorted({p[:300] for p in problems})}")
    return int(bool(problems))


def check_all(until: float, only: str) -> int:
    """Compare every checked call with its reference; returns how many are wrong."""
    wrong = done = 0
    for example in checked():
        if time.time() > until:
            print("CHECKS: out of time")
            break
        if only and only not in example.op:
            continue
        try:
            found = outputs(example, "cutile", "cuda")
            torch.cuda.synchronize()
            wanted = outputs(example, "reference", "cuda")
            said = "; ".join(filter(None, (difference(example, f, w) for f, w in zip(found, wanted, strict=True))))
        except Exception as error:
            said = f"{type(error).__name__}: {str(error)[:300]}"
        done += 1
        wrong += bool(said)
        if said:
            print(f"WRONG {example.op} {example.text}: {said}", flush=True)
        if "CUDA error" in said or "illegal" in said:
            print("CHECKS: the device is lost")
            break
    print(f"CHECKS: {done - wrong} of {done} right", flush=True)
    return wrong


def time_all(until: float, arch: str, only: str, heuristics: bool) -> None:
    """Time each call in its configs, in turns with torch's."""
    flush = torch.empty(FLUSHED, dtype=torch.int8, device="cuda")
    for one in timed():
        if time.time() > until:
            print("TIMES: out of time")
            return
        if only and only not in one.example.op:
            continue
        try:
            taker, tensors = one.taker("cuda", arch)
            peer = None
            try:
                peer = one.peer(tensors)
                if peer:
                    peer()
            except Exception as error:
                peer = None
                print(f"     torch: {type(error).__name__}: {str(error)[:200]}", flush=True)
            for place, config in enumerate(one.all_configs(taker, heuristics)):
                try:
                    call = partial(taker.bound(config), *tensors, **taker.call.options)
                    theirs = milliseconds(peer, flush, 7) if peer else 0.0
                    took = milliseconds(call, flush, 7)
                    beside = f", torch {one.work / theirs * 1e3:.0f}, ratio {theirs / took:.3f}" if peer else ""
                    speed = f"{took * 1e3:.1f} us, {one.work / took * 1e3:.0f} TFLOPS{beside}"
                    chosen = "heuristic " if not place else ""
                    print(f"TIME {one.example.op} {one.example.text} {chosen}{speed}, {config}", flush=True)
                except Exception as error:
                    print(f"     {config}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            del tensors, peer
        except Exception as error:
            print(f"TIME {one.example.op} {one.example.text}: {type(error).__name__}: {str(error)[:300]}", flush=True)


def main() -> int:
    """Build or run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--build", type=Path)
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--build-seconds", type=float, default=3600)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", default="", help="a part of the ops' names")
    parser.add_argument("--heuristics", action="store_true", help="no configs but the heuristics'")
    given = parser.parse_args()
    if given.build:
        return build(given.build, given.arch, given.workers, given.build_seconds, given.heuristics)
    began = time.time()
    with tempfile.TemporaryDirectory() as place:
        # A copy of this user's own: a bundle that belongs to somebody else is not read.
        shutil.copytree(given.bundle, f"{place}/bundle", copy_function=shutil.copyfile)
        for path in Path(place).rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        os.environ |= {"OPMUX_BUNDLES": f"{place}/bundle", "OPMUX_NO_JIT": "1"}
        os.environ.setdefault("OPMUX_CACHE", f"{place}/cache")
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
        wrong = check_all(began + given.seconds * 0.5, given.only)
        time_all(began + given.seconds, given.arch, given.only, given.heuristics)
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
