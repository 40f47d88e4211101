"""The demo's model on a GPU: compiled, trained, in two threads, and captured as a decode step."""

import threading
from typing import Any

import pytest
import torch
from gpu_calls import chosen, small_model

import opmux
from opmux.demo.model import Llama
from opmux.nn import PagedLayer, PagedStep, quantize_

pytestmark = pytest.mark.gpu


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


@pytest.mark.parametrize("eight_bits", [False, True], ids=["bfloat16", "fp8"])
def test_a_decode_step_is_captured_whole_and_replays(eight_bits: bool) -> None:
    """Once more with weights, activations, keys and values in fp8."""
    model = small_model()
    dtype, scales = torch.bfloat16, (None, None)
    if eight_bits:
        assert len(quantize_(model, "fp8").converted()) == 9
        dtype = opmux.fp8_dtype("cuda")
        scales = (torch.full((1,), 0.02, device="cuda"), torch.full((1,), 0.01, device="cuda"))
    batch, page_size, pages = 4, 16, 4
    shape = (batch * pages, model.config.layers, 2, page_size, model.config.kv_heads, model.config.head_dim)

    def state() -> dict[str, torch.Tensor]:
        generator = torch.Generator("cuda").manual_seed(0)
        return {
            "cache": torch.randn(shape, generator=generator, device="cuda").to(dtype),
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
        y = model.body(s["ids"], [PagedLayer(*cache.unbind(1), where, *scales) for cache in caches])
        s["ids"].copy_(model.logits(y).argmax(-1))
        s["position"].add_(1)
        s["lengths"].add_(1)

    eager, captured = state(), state()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), opmux.trace() as traced:
        step(state())
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(captured)
    for _ in range(20):
        step(eager)
        graph.replay()
        assert captured["ids"].tolist() == eager["ids"].tolist()
    torch.testing.assert_close(captured["cache"].float(), eager["cache"].float())
    ran = chosen(traced)
    assert {backend for _, backend in ran} == {"triton"}
    assert ("scaled_linear" in {op for op, _ in ran}) == eight_bits
