"""Streams and threads on a GPU: an op runs on the current stream, and what runs beside it does not disturb it."""

import threading

import pytest
import torch
from torch_bridge.samples import ALL, FUNCTIONAL, Block, outputs, sample

import opmux

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", ALL)
def test_a_gpu_gives_what_the_cpu_gives(name: str) -> None:
    on_cpu, on_gpu = sample(name, torch.float64), sample(name, torch.float64, "cuda")
    for given, expected in zip(outputs(on_gpu()), outputs(on_cpu()), strict=True):
        assert given.is_cuda
        torch.testing.assert_close(given.cpu(), expected)
    for given, expected in zip(on_gpu.tensors, on_cpu.tensors, strict=True):
        torch.testing.assert_close(None if given is None else given.cpu(), expected)


@pytest.mark.parametrize("name", ALL)
def test_an_op_runs_on_the_current_stream(name: str) -> None:
    """What a busy stream writes late is what an op on that stream reads."""
    call, expected = sample(name, torch.float32, "cuda"), sample(name, torch.float32, "cuda")
    late = call.with_tensors(lambda t: torch.zeros_like(t) if t.is_floating_point() else t)
    expected_results = outputs(expected())
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        for tensor, values in zip(late.tensors, call.tensors, strict=True):
            if tensor is not None:
                tensor.copy_(values)
        results = outputs(late())
    stream.synchronize()
    torch.testing.assert_close(results, expected_results)
    torch.testing.assert_close(late.tensors, expected.tensors)


def test_two_streams_at_once() -> None:
    block = Block().cuda()
    inputs = [torch.randn(2, 5, 32, device="cuda") for _ in range(2)]
    expected = [block(x).detach() for x in inputs]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in inputs]
    results: list[list[torch.Tensor]] = [[], []]
    for _ in range(10):
        for stream, x, kept in zip(streams, inputs, results, strict=True):
            with torch.cuda.stream(stream):
                kept.append(block(x).detach())
    torch.cuda.synchronize()
    for kept, wanted in zip(results, expected, strict=True):
        for result in kept:
            torch.testing.assert_close(result, wanted)


def test_two_threads_with_a_stream_each_forward_and_backward() -> None:
    blocks = [Block().cuda() for _ in range(2)]
    inputs = [torch.randn(2, 5, 32, device="cuda") for _ in range(2)]
    expected = []
    for block, x in zip(blocks, inputs, strict=True):
        expected.append(torch.autograd.grad(block(x).square().sum(), list(block.parameters())))
    torch.cuda.synchronize()
    for op in ("rms_norm", "attention_lse", "linear_backward"):
        getattr(opmux, op).op.drop_plans()
    failures: list[BaseException] = []

    def work(place: int) -> None:
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(10):
                    block, x = blocks[place], inputs[place]
                    grads = torch.autograd.grad(block(x).square().sum(), list(block.parameters()))
            stream.synchronize()
            torch.testing.assert_close(grads, expected[place], rtol=1e-4, atol=1e-4)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_the_time_on_the_device_is_traced() -> None:
    x, weight = torch.randn(4096, 4096, device="cuda"), torch.randn(4096, device="cuda")
    with opmux.trace() as trace:
        opmux.rms_norm(x, weight)
    (row,) = trace.rows
    assert row.device_us > 0
    assert row.backend == "reference"


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_tensors_of_two_devices_are_refused(name: str) -> None:
    call = sample(name, torch.float32, "cuda")
    tensors = list(call.tensors)
    given = [i for i, t in enumerate(tensors) if t is not None]
    if len(given) < 2:
        assert len(call.op.signature.tensors) == 1
        return
    moved = given[-1]
    tensors[moved] = tensors[moved].cpu()  # type: ignore[union-attr]
    with pytest.raises(opmux.errors.InvalidArgument, match=r"expected device cuda:0, where"):
        call.run(*tensors)
