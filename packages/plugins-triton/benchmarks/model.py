"""The demo's model at 1.1 billion parameters: prefill, decode and a training step, against torch.compile.

``python benchmarks/model.py --out model.json [--phases prefill,decode,training] [--tiny] [--kernels N]``; phases
in the file that are not run again stay in it. Both sides have the same weights. The peer is the same model written
with PyTorch's own functions and compiled: its decode uses a static cache (its sequences have equal lengths, which suits
it), opmux's a paged one. Every phase is timed in interleaved rounds; graphs for both or for neither. With
``--kernels N`` one more run of each row goes through the profiler, and the N kernels it spent the most device time in
are printed and kept.
"""

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from opmux.demo.model import Llama, LlamaConfig
from opmux.nn import PagedCache, PagedStep

BILLION = LlamaConfig(
    vocabulary=32768, layers=16, heads=32, kv_heads=8, head_dim=64, intermediate=8192, max_positions=4096
)
TINY = LlamaConfig(vocabulary=256, layers=2, heads=4, kv_heads=2, head_dim=16, intermediate=128, max_positions=256)
PAGE_SIZE = 16


def make_model(config: LlamaConfig, device: torch.device, dtype: torch.dtype) -> Llama:
    """The demo's model in a dtype, with random weights, made where it runs; rope's tables stay float32."""
    generator = torch.Generator(device).manual_seed(0)
    original = torch.nn.init.normal_
    torch.nn.init.normal_ = lambda weight, **_: weight  # the demo's own init is slow at this size
    try:
        with torch.device("meta"):
            model = Llama(config)
    finally:
        torch.nn.init.normal_ = original
    model = model.to(dtype).to_empty(device=device)
    for norm in (model.final_norm, *(n for layer in model.stack() for n in (layer.attention_norm, layer.mlp_norm))):
        norm.reset_parameters()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 2:
                std = 0.02 if name == "embedding" else weight.shape[1] ** -0.5
                weight.copy_(torch.randn(weight.shape, generator=generator, device=device, dtype=torch.float32) * std)
    return model


def attend_one(q: Tensor, k: Tensor, v: Tensor, start: Tensor) -> Tensor:
    """One query for each sequence, over a static cache ``(batch, kv_heads, length, head_dim)``.

    Two batched products with the heads of a group as rows: with grouped heads, PyTorch's own attention takes a mask
    only on its slowest path, which reads every key once for each head of the group.
    """
    batch, heads, _, head_dim = q.shape
    q = q.reshape(batch, k.shape[1], heads // k.shape[1], head_dim)
    scores = (q @ k.transpose(-1, -2)).float() * head_dim**-0.5
    seen = torch.arange(k.shape[2], device=k.device) <= start
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1).to(v.dtype)
    return (weights @ v).reshape(batch, heads, 1, head_dim)


class Peer(torch.nn.Module):
    """The same model in PyTorch's own functions, sharing the weights."""

    def __init__(self, model: Llama) -> None:
        super().__init__()
        self.model = model

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Halves rotated; cos and sin ``(seq, 1, head_dim / 2)``, float32."""
        a, b = x.float().chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)

    def forward(self, ids: Tensor, cache: list[Tensor] | None = None, start: Tensor | None = None) -> Tensor:
        """Logits of ``ids (batch, seq)``; of one step with a cache: keys and values of each layer, one after the other,
        ``(batch, kv_heads, length, head_dim)``. Tensors of their own: in a slice of one, torch.compile copies all.
        """
        m, c = self.model, self.model.config
        x = F.embedding(ids, m.embedding)
        if start is None:
            cos, sin = m.rotary.cos[: ids.shape[1], None], m.rotary.sin[: ids.shape[1], None]
        else:
            cos, sin = (t.index_select(0, start[None])[None] for t in (m.rotary.cos, m.rotary.sin))
        for index, layer in enumerate(m.layers):
            y = F.rms_norm(x, (c.hidden,), layer.attention_norm.weight, c.eps)
            heads = F.linear(y, layer.attention.qkv_proj.weight).unflatten(-1, (-1, c.head_dim))
            q, k, v = heads.split([c.heads, c.kv_heads, c.kv_heads], dim=-2)
            q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)
            q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
            if cache is None:
                out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            else:
                keys, values = cache[2 * index], cache[2 * index + 1]
                keys.index_copy_(2, start[None], k)
                values.index_copy_(2, start[None], v)
                out = attend_one(q, keys, values, start)
            x = x + F.linear(out.transpose(1, 2).flatten(-2), layer.attention.o_proj.weight)
            y = F.rms_norm(x, (c.hidden,), layer.mlp_norm.weight, c.eps)
            gate, up = F.linear(y, layer.mlp.gate_up_proj.weight).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, layer.mlp.down_proj.weight)
        x = F.rms_norm(x, (c.hidden,), m.final_norm.weight, c.eps)
        return F.linear(x[:, -1:] if cache is not None else x, m.head.weight)


class Decoder:
    """Decode steps of the demo's model through a paged cache, everything on the device, so that a graph can hold it."""

    def __init__(self, model: Llama, batch: int, length: int) -> None:
        c, device, dtype = model.config, model.embedding.device, model.embedding.dtype
        self.model, self.batch, self.length = model, batch, length
        pages = -(-length // PAGE_SIZE)
        self.cache = PagedCache(c.layers, batch * pages, PAGE_SIZE, c.kv_heads, c.head_dim, dtype=dtype, device=device)
        order = torch.randperm(batch * pages, generator=torch.Generator().manual_seed(0))
        self.table = order.to(torch.int32).reshape(batch, pages).to(device)
        places = self.table[:, :, None] * PAGE_SIZE + torch.arange(PAGE_SIZE, device=device)
        self.slots = places.to(torch.int64).flatten(1)
        """The slot of each position of each sequence."""
        self.offsets = torch.arange(batch + 1, dtype=torch.int32, device=device)
        self.position = torch.zeros(batch, dtype=torch.int64, device=device)
        self.lengths = torch.zeros(batch, dtype=torch.int32, device=device)
        self.ids = torch.zeros(batch, dtype=torch.int64, device=device)

    def start(self, position: int) -> None:
        """Go to a position; the cache before it holds random values."""
        self.position.fill_(position)
        self.lengths.fill_(position + 1)

    @torch.no_grad()
    def step(self) -> None:
        """One token of each sequence; the next ids replace the last."""
        slots = self.slots.gather(1, self.position[:, None])[:, 0]
        step = PagedStep(
            self.position, slots, self.offsets, self.lengths, self.table, max_seqlen_q=1, max_seqlen_k=self.length
        )
        contexts = [self.cache.layer(index, step) for index in range(self.model.config.layers)]
        y = self.model.body(self.ids, contexts)
        torch.argmax(self.model.logits(y), -1, out=self.ids)
        self.position.add_(1)
        self.lengths.add_(1)


class PeerDecoder:
    """The same steps with the compiled peer and a static cache."""

    def __init__(self, model: Llama, forward: Callable[..., Tensor], batch: int, length: int) -> None:
        c, device, dtype = model.config, model.embedding.device, model.embedding.dtype
        self.forward = forward
        shape = (batch, c.kv_heads, length, c.head_dim)
        self.cache = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(2 * c.layers)]
        self.position = torch.zeros((), dtype=torch.int64, device=device)
        self.ids = torch.zeros((batch, 1), dtype=torch.int64, device=device)

    def start(self, position: int) -> None:
        """Go to a position."""
        self.position.fill_(position)

    @torch.no_grad()
    def step(self) -> None:
        """One token of each sequence."""
        torch.argmax(self.forward(self.ids, self.cache, self.position), -1, out=self.ids)
        self.position.add_(1)


def graphed(step: Callable[[], None]) -> Callable[[], None]:
    """The step as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def seconds(run: Callable[[], Any], device: torch.device) -> float:
    """Wall time of one call, the device's work in it."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def contest(runs: dict[str, Callable[[], Any]], device: torch.device, rounds: int) -> dict[str, list[float]]:
    """Interleaved rounds after one warm-up; a row that fails is reported and left out."""
    taken: dict[str, list[float]] = {}
    for name, run in runs.items():
        try:
            run()
            taken[name] = []
        except Exception as error:  # one row's failure must not stop the others
            print(f"{name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
    for _ in range(rounds):
        for name, samples in taken.items():
            samples.append(seconds(runs[name], device))
    return taken


def device_time_by_kernel(run: Callable[[], Any], most: int) -> list[dict[str, Any]]:
    """The kernels of one run with the most device time: name, count, microseconds in all."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    totals = sorted(profile.key_averages(), key=lambda event: -event.self_device_time_total)
    return [{"kernel": e.key, "count": e.count, "us": e.self_device_time_total} for e in totals[:most]]


def training_step(forward: Callable[[Tensor], Tensor], model: Llama, ids: Tensor) -> Callable[[], None]:
    """Forward, loss, backward and AdamW (fused) over all weights."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=ids.is_cuda)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        logits = forward(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()

    return step


def main() -> None:
    """Run the phases and write what was measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--phases", default="prefill,decode,training")
    parser.add_argument("--mode", default="max-autotune-no-cudagraphs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kernels", type=int, default=0)
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    gpu = device.type == "cuda"
    config = TINY if arguments.tiny else BILLION
    batch, prompt, new = (2, 32, 8) if arguments.tiny else (8, 2048, 128)
    train_batch, train_seq = (2, 33) if arguments.tiny else (4, 2049)
    mode: Any = {"mode": arguments.mode} if gpu else {"backend": "eager"}
    dtype = torch.bfloat16 if gpu else torch.float32
    model = make_model(config, device, dtype)
    peer = Peer(model)
    compiled = torch.compile(peer, dynamic=False, **mode)
    ids = torch.randint(config.vocabulary, (batch, prompt), device=device)
    result: dict[str, Any] = {
        "torch": torch.__version__, "device": torch.cuda.get_device_name() if gpu else "cpu",
        "parameters": sum(p.numel() for p in model.parameters()), "phases": {},
    }  # fmt: skip
    if arguments.out and arguments.out.exists():
        result["phases"] = json.loads(arguments.out.read_text())["phases"]

    def report(phase: str, tokens: int, runs: dict[str, Callable[[], Any]]) -> None:
        taken = contest(runs, device, arguments.rounds)
        rows: dict[str, dict[str, Any]] = {
            name: {"tokens_per_s": tokens / statistics.median(t), "seconds": t} for name, t in taken.items() if t
        }
        result["phases"][phase] = {"mode": arguments.mode, "rows": rows}
        for name, row in rows.items():
            if gpu and arguments.kernels:
                row["kernels"] = device_time_by_kernel(runs[name], arguments.kernels)
                for k in row["kernels"]:
                    print(f"    {k['us']:10.0f} us {k['count']:5} {k['kernel'][:110]}", flush=True)
            print(f"{phase:18} {name:34} {row['tokens_per_s']:12.0f} tokens/s", flush=True)
        if arguments.out:
            arguments.out.write_text(json.dumps(result, indent=1))

    phases = arguments.phases.split(",")
    with torch.no_grad():
        logits, wanted = model(ids[:1, :64]), peer(ids[:1, :64])
        off = (logits.float() - wanted.float()).norm() / wanted.float().norm()
        print(f"opmux against the peer: relative difference of the logits {off:.4f}", flush=True)
        result["difference"] = float(off)
    if "prefill" in phases:
        with torch.no_grad():
            runs = {
                "opmux": lambda: model(ids),
                "torch eager": lambda: peer(ids),
                "torch.compile": lambda: compiled(ids),
            }
            report(f"prefill {batch}x{prompt}", batch * prompt, runs)
    if "decode" in phases:
        length = prompt + new + 16
        ours = Decoder(model, batch, length)
        theirs = PeerDecoder(model, compiled, batch, length)

        def loop(decoder: Any, step: Callable[[], None]) -> Callable[[], None]:
            def run() -> None:
                decoder.start(prompt)
                for _ in range(new):
                    step()

            return run

        runs = {"opmux": loop(ours, ours.step), "torch.compile": loop(theirs, theirs.step)}
        report(f"decode {batch}, no graph", batch * new, runs)
        if gpu:
            runs = {}
            for name, decoder in (("opmux", ours), ("torch.compile", theirs)):
                with contextlib.suppress(Exception):
                    decoder.start(prompt)
                    runs[name] = loop(decoder, graphed(decoder.step))
            report(f"decode {batch}, graph", batch * new, runs)
    if "training" in phases:
        windows = torch.randint(config.vocabulary, (train_batch, train_seq), device=device)
        runs = {
            "opmux": training_step(model, model, windows),
            "torch eager": training_step(peer, model, windows),
            "torch.compile": training_step(compiled, model, windows),
        }
        tokens = train_batch * (train_seq - 1)
        report(f"training {train_batch}x{train_seq - 1}", tokens, runs)


if __name__ == "__main__":
    main()
