"""On a GPU: which kernels really run, graphs, streams, threads, compiled graphs, and a kernel that does not build."""

import importlib
import logging
import pkgutil
import threading
from collections.abc import Iterator
from typing import Any

import planted_kernels as planted
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import opmux
import opmux_triton
from opmux.bench.cases import MAKERS, Arguments, Data
from opmux.bench.shapes import SIZES
from opmux.callpath.op import OPS
from opmux.demo.model import Llama, LlamaConfig
from opmux.errors import BuildFailed, CaptureRefused
from opmux.nn import PagedLayer, PagedStep
from opmux.plugin import Implementation, Priority, hookimpl
from opmux.plugins.loading import temporary_plugin
from opmux_triton import families, repeats
from opmux_triton.launch import launch

pytestmark = pytest.mark.gpu

IMPLEMENTED = sorted({record.op for record in families.records()})
PREFILL, DECODE = SIZES["small"]
FILLS = ("Memset", "FillFunctor")
"""What torch launches to fill a tensor: the one thing that a target may leave to it."""


def arguments_of(op: str, shape: Any = PREFILL, dtype: torch.dtype = torch.bfloat16) -> Arguments:
    return MAKERS[op](Data.seeded(torch.device("cuda"), dtype), shape)


def call(op: str, given: Arguments, backend: str = "triton") -> tuple[torch.Tensor, ...]:
    """What a call returns, or what it leaves in its mutated arguments; its arguments stay as they are."""
    tensors = [t.clone() if t is not None else None for t in given.tensors]
    results = OPS[op].public(*tensors, **given.options, backend=backend)
    if results is None:
        named = OPS[op].names(tuple(tensors))
        return tuple(named[name] for name in OPS[op].signature.mutates)
    return results if isinstance(results, tuple) else (results,)


def kernels() -> set[str]:
    """The names of this package's kernels."""
    from triton.runtime.jit import JITFunction

    found = set()
    for module in pkgutil.walk_packages(opmux_triton.__path__, "opmux_triton."):
        if module.name.endswith("kernels"):
            found |= {
                v.__name__ for v in vars(importlib.import_module(module.name)).values() if isinstance(v, JITFunction)
            }
    return found


@pytest.mark.filterwarnings("ignore:.*Profiler clears events at the end of each cycle:UserWarning")
@pytest.mark.parametrize("op", IMPLEMENTED)
def test_only_this_packages_kernels_run(op: str) -> None:
    given = arguments_of(op)
    call(op, given)
    tensors = [t.clone() if t is not None else None for t in given.tensors]
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        OPS[op].public(*tensors, **given.options, backend="triton")
        torch.cuda.synchronize()
    on_device = [e.key for e in seen.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA]
    ran = [name for name in on_device if not name.startswith("opmux::")]  # the op's own range, no kernel
    mine = kernels()
    assert any(name in mine for name in ran), ran
    assert [n for n in ran if n not in mine and not any(fill in n for fill in FILLS)] == []


@pytest.mark.parametrize("op", IMPLEMENTED)
def test_a_captured_call_replays_on_new_data(op: str) -> None:
    given = arguments_of(op)
    tensors = [t.clone() if t is not None else None for t in given.tensors]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call(op, given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = OPS[op].public(*tensors, **given.options, backend="triton")
    for seed in (1, 2):
        fresh = MAKERS[op](Data.seeded(torch.device("cuda"), torch.bfloat16, seed), PREFILL)
        for tensor, other in zip(tensors, fresh.tensors, strict=True):
            if tensor is not None:
                tensor.copy_(other)
        graph.replay()
        expected = call(op, fresh)
        if results is None:
            named = OPS[op].names(tuple(tensors))
            got: Any = tuple(named[name] for name in OPS[op].signature.mutates)
        else:
            got = results if isinstance(results, tuple) else (results,)
        torch.testing.assert_close(got, expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("shape", [PREFILL, DECODE], ids=["prefill", "decode"])
@pytest.mark.parametrize("op", IMPLEMENTED)
def test_a_repeated_call_computes_with_the_tensors_it_is_given(op: str, shape: Any) -> None:
    def fresh(seed: int) -> Arguments:
        return MAKERS[op](Data.seeded(torch.device("cuda"), torch.bfloat16, seed), shape)

    exact = all(record.deterministic for record in families.records() if record.op == op)
    tolerance = 0 if exact else 1e-2
    expected = []
    for seed in range(3):
        repeats._repeats.clear()
        expected.append(call(op, fresh(seed)))
    repeats._repeats.clear()
    for _ in range(3):  # the second call of a kind is noted, the third is the first one that repeats
        for seed in range(3):  # new tensors each time, in memory that was freed
            for got, wanted in zip(call(op, fresh(seed)), expected[seed], strict=True):
                torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("op", IMPLEMENTED)
def test_two_streams_at_once(op: str) -> None:
    given = [arguments_of(op, shape) for shape in (PREFILL, DECODE)]
    expected = [call(op, g) for g in given]
    streams = [torch.cuda.Stream() for _ in given]
    torch.cuda.synchronize()
    for _ in range(5):
        results = []
        for stream, g in zip(streams, given, strict=True):
            with torch.cuda.stream(stream):
                results.append(call(op, g))
        torch.cuda.synchronize()
        for got, wanted in zip(results, expected, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-2, atol=1e-2)


def test_two_threads_train_and_get_what_one_gets() -> None:
    def gradients(model: Llama, ids: torch.Tensor) -> list[torch.Tensor]:
        loss = model(ids).float().logsumexp(-1).mean()
        return list(torch.autograd.grad(loss, list(model.parameters())))

    models = [small_model(seed) for seed in (0, 1)]
    ids = torch.randint(64, (2, 96), device="cuda")
    expected = [gradients(m, ids) for m in models]
    results: list[Any] = [None, None]

    def work(place: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(3):
                results[place] = gradients(models[place], ids)
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=work, args=(place,)) for place in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for got, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-3)


def small_model(seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> Llama:
    """The demo's model, in bfloat16; rope's tables stay float32."""
    model = Llama(LlamaConfig(64, layers=2, heads=4, kv_heads=2, head_dim=64, intermediate=256), seed)
    return model.to("cuda", dtype)


def chosen(traced: Any) -> set[tuple[str, str]]:
    return {(row.op, row.backend.partition(":")[0]) for row in traced.rows}


def test_the_demos_model_compiles_whole_and_triton_runs_in_it() -> None:
    model, ids = small_model(), torch.randint(64, (2, 96), device="cuda")
    with torch.no_grad():
        expected = model(ids)
        compiled = torch.compile(model, fullgraph=True)
        compiled(ids)
        with opmux.trace() as traced:
            got = compiled(ids)
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)
    assert {backend for _, backend in chosen(traced)} == {"triton"}
    assert len(chosen(traced)) >= 6


def test_a_training_step_runs_on_triton_alone() -> None:
    model, ids = small_model(), torch.randint(64, (2, 96), device="cuda")
    with opmux.trace() as traced:
        model(ids).float().logsumexp(-1).mean().backward()
    assert {backend for _, backend in chosen(traced)} == {"triton"}
    assert {"linear_backward", "attention_backward", "rms_norm_backward"} <= {op for op, _ in chosen(traced)}


def test_a_decode_step_is_captured_whole_and_replays() -> None:
    model = small_model()
    batch, page_size, pages = 4, 16, 4
    shape = (batch * pages, model.config.layers, 2, page_size, model.config.kv_heads, model.config.head_dim)

    def state() -> dict[str, torch.Tensor]:
        generator = torch.Generator("cuda").manual_seed(0)
        return {
            "cache": torch.randn(shape, generator=generator, device="cuda").bfloat16(),
            "ids": torch.arange(batch, device="cuda"),
            "position": torch.full((batch,), 21, device="cuda"),
            "lengths": torch.full((batch,), 22, dtype=torch.int32, device="cuda"),
        }

    table = torch.arange(batch * pages, dtype=torch.int32, device="cuda").reshape(batch, pages)
    offsets = torch.arange(batch + 1, dtype=torch.int32, device="cuda")

    @torch.no_grad()
    def step(s: dict[str, torch.Tensor]) -> None:
        page = table.gather(1, (s["position"] // page_size)[:, None])[:, 0].long()
        slots = page * page_size + s["position"] % page_size

        where = PagedStep(s["position"], slots, offsets, s["lengths"], table, 1, pages * page_size)
        caches = s["cache"].unbind(1)
        y = model.body(s["ids"], [PagedLayer(*cache.unbind(1), where) for cache in caches])
        s["ids"].copy_(model.logits(y).argmax(-1))
        s["position"].add_(1)
        s["lengths"].add_(1)

    eager, captured = state(), state()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step(state())
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(captured)
    for _ in range(20):
        step(eager)
        graph.replay()
        assert captured["ids"].tolist() == eager["ids"].tolist()
    torch.testing.assert_close(captured["cache"], eager["cache"])


def broken(x: torch.Tensor, weight: torch.Tensor, *, eps: float, weight_offset: float) -> torch.Tensor:
    """A target whose kernel does not compile."""
    y = torch.empty_like(x)
    launch(planted.not_compiling, (1,), (x, y, x.numel()), {"BLOCK": 128})
    return y


@pytest.fixture
def a_broken_backend() -> Iterator[None]:
    class Plugin:
        OPMUX_API_VERSION = 1

        @staticmethod
        @hookimpl
        def opmux_implementations() -> list[Implementation]:
            return [Implementation(op="rms_norm", target=broken, priority=Priority.SPECIALISED, capturable=True)]

    with temporary_plugin(Plugin(), "broken", "opmux-broken", "1.0"):
        yield


def test_a_kernel_that_does_not_build_is_quarantined_announced_and_no_crash(
    a_broken_backend: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="opmux")
    x, weight = torch.randn(4, 128, device="cuda"), torch.ones(128, device="cuda")
    with opmux.trace() as traced:
        y = opmux.rms_norm(x, weight)
    torch.testing.assert_close(y, opmux.rms_norm(x, weight, backend="reference"))
    assert chosen(traced) == {("rms_norm", "triton")}
    (record,) = opmux.quarantined()
    assert (record.op, record.name, record.scope) == ("rms_norm", "broken", "arch")
    assert record.reason.startswith("kernel not_compiling did not build: CompileTimeAssertionFailure: ")
    announced = [m for m in caplog.messages if m.startswith("rms_norm: broken (opmux-broken 1.0) is quarantined on ")]
    assert len(announced) == 1


def test_a_kernel_that_does_not_build_says_what_failed() -> None:
    x = torch.randn(128, device="cuda")
    with pytest.raises(BuildFailed) as raised:
        launch(planted.not_compiling, (1,), (x, torch.empty_like(x), 128), {"BLOCK": 128})
    assert str(raised.value).startswith("kernel not_compiling did not build: CompileTimeAssertionFailure: ")
    assert "planted: this kernel does not compile" in str(raised.value)


@pytest.mark.parametrize("lengths", [[131072], [70], [40000, 3]], ids=str)
@pytest.mark.parametrize("kv_heads", [1, 8])
def test_splits_of_very_long_sequences_are_joined_in_turns(kv_heads: int, lengths: list[int]) -> None:
    """Room for 131072 keys: of one sequence and key/value head that is 264 splits on an H200, of two 132 each."""
    reach, page = 131072, 64
    pages = reach // page * len(lengths)
    data = Data.seeded(torch.device("cuda"), torch.bfloat16)
    q = data.normal(len(lengths), 8, 128)
    k_cache, v_cache = (data.normal(pages, page, kv_heads, 128) for _ in range(2))
    offsets = torch.arange(len(lengths) + 1, dtype=torch.int32, device="cuda")
    table = torch.randperm(pages, device="cuda").to(torch.int32).view(len(lengths), -1)
    given = (q, k_cache, v_cache, offsets, torch.tensor(lengths, dtype=torch.int32, device="cuda"), table)
    bounds = {"max_seqlen_q": 1, "max_seqlen_k": reach}
    found = opmux.paged_attention_lse(*given, **bounds, backend="triton")
    wide = (q.float(), k_cache.float(), v_cache.float(), *given[3:])
    expected = opmux.paged_attention_lse(*wide, **bounds, backend="reference")
    apart = (found[0].float() - expected[0]).norm(dim=-1) / expected[0].norm(dim=-1)
    assert apart.max() < 1e-2
    torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-4)


def normed(x: torch.Tensor, weight: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
    """torch's layer norm with a bias, its rms norm without."""
    if bias:
        return torch.nn.functional.layer_norm(x, weight.shape, weight, *bias, eps=1e-5)
    return torch.nn.functional.rms_norm(x, weight.shape, weight, eps=1e-5)


@pytest.mark.parametrize("hidden", [8192, 20000, 40000])
@pytest.mark.parametrize("op", ["rms_norm", "layer_norm", "add_rms_norm", "add_layer_norm"])
def test_rows_longer_than_a_program_holds(op: str, hidden: int) -> None:
    """They are read in passes: much data in rows of 8192, gradients from 16384 columns on, everything from 32768."""
    data = Data.seeded(torch.device("cuda"), torch.float32)
    rows = [data.normal(2100, hidden) + 30 for _ in range(2 if op.startswith("add") else 1)]
    leaves = [*rows, *(data.normal(hidden) for _ in range(2 if "layer" in op else 1))]
    due = [data.normal(2100, hidden) for _ in rows]

    def gradients(outs: tuple[torch.Tensor, ...], given: list[torch.Tensor]) -> list[torch.Tensor]:
        return [*outs, *torch.autograd.grad(outs, given, [d.to(outs[0].dtype) for d in due])]

    own = [leaf.clone().requires_grad_() for leaf in leaves]
    with opmux.trace() as traced:
        found = OPS[op].public(*own, eps=1e-5)
        found = gradients(found if isinstance(found, tuple) else (found,), own)
    assert {backend for _, backend in chosen(traced)} == {"triton"}
    wide = [leaf.double().requires_grad_() for leaf in leaves]
    total = wide[0] + wide[1] if len(rows) == 2 else wide[0]
    outs = (normed(total, *wide[len(rows) :]), *([total] if len(rows) == 2 else []))
    for one, right in zip(found, gradients(outs, wide), strict=True):
        assert (one - right).norm() < 1e-4 * right.norm()


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")  # the one with which torch begins its pool
def test_compiled_graphs_find_nothing_alive_in_their_pool() -> None:
    """`reduce-overhead` counts what is allocated in a graph's pool: what a call keeps must not lie there."""
    torch._dynamo.reset()
    made = [(4, 8, 64), (512, 512), (64, 16, 2, 64), (512,)]
    q, w, pages, weight = (torch.randn(*shape, dtype=torch.bfloat16, device="cuda") for shape in made)
    offsets = torch.arange(5, dtype=torch.int32, device="cuda")
    lengths = torch.full((4,), 250, dtype=torch.int32, device="cuda")
    table = torch.arange(64, dtype=torch.int32, device="cuda").view(4, 16)

    def step(q: torch.Tensor) -> torch.Tensor:
        out = opmux.paged_attention(q, pages, pages, offsets, lengths, table, max_seqlen_q=1, max_seqlen_k=256 * 16)
        x = opmux.linear(out.flatten(1), w)
        return opmux.rms_norm(x, weight).view(4, 8, 64)

    compiled = torch.compile(step, mode="reduce-overhead", fullgraph=True)
    expected = step(q)
    for _ in range(5):
        torch.compiler.cudagraph_mark_step_begin()
        torch.testing.assert_close(compiled(q), expected)


def test_nothing_is_compiled_while_a_graph_is_captured() -> None:
    x = torch.randn(4096, device="cuda")
    y = torch.empty_like(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y.zero_()
        with pytest.raises(CaptureRefused) as raised:
            launch(planted.copy, (4,), (x, y, 4096), {"BLOCK": 1024})
    assert str(raised.value) == (
        "triton: kernel copy is not compiled yet for arguments like these, and a graph is being captured; "
        "run the call once before the capture"
    )


def test_a_launch_is_specialised_as_triton_does_it() -> None:
    x = torch.randn(4200, device="cuda")
    for begin, count in ((0, 4096), (1, 4096), (1, 4097), (0, 1), (4, 4001), (0, 4096)):
        y = torch.zeros(4200, device="cuda")
        launch(planted.copy, (5,), (x[begin:], y, count), {"BLOCK": 1024})
        assert torch.equal(y[:count], x[begin : begin + count])
        assert not y[count:].any()


@pytest.mark.gpu(2)
def test_a_launch_goes_to_its_tensors_device() -> None:
    x = torch.randn(4096, device="cuda:1")
    y = torch.empty_like(x)
    launch(planted.copy, (4,), (x, y, 4096), {"BLOCK": 1024})
    assert torch.equal(x, y)
    assert torch.cuda.current_device() == 0
