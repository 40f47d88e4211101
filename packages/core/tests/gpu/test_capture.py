"""Graph capture on a GPU: what has been planned is captured and replays; what reads data is refused."""

import gc

import pytest
import torch
from torch_bridge.samples import ALL, DIFFERENTIABLE, Sample, outputs, sample, total

import opmux
from opmux.callpath.op import OPS
from opmux.errors import CaptureRefused

pytestmark = pytest.mark.gpu

CAPTURABLE = [n for n in ALL if OPS[n].capturable]
UNCAPTURABLE = [n for n in ALL if not OPS[n].capturable]


def on_gpu(name: str, dtype: torch.dtype = torch.float32) -> Sample:
    return sample(name, dtype, "cuda")


@pytest.fixture(autouse=True)
def no_garbage() -> None:
    """Free the graphs and events that other tests left behind: freed during a capture they break it."""
    gc.collect()


def warm_up(call: Sample) -> None:
    """Run a call once beside the default stream, as torch asks for before a capture."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call.copy()()
    torch.cuda.current_stream().wait_stream(stream)


def shuffle(call: Sample) -> Sample:
    """Write other values into the floating tensors of a call, and return a call on copies of them."""
    for tensor in call.tensors:
        if tensor is not None and tensor.is_floating_point():
            tensor.copy_(torch.rand_like(tensor, dtype=torch.float32) + 0.5)
    return call.copy()


@pytest.mark.parametrize("name", CAPTURABLE)
def test_capture_and_replay(name: str) -> None:
    call = on_gpu(name)
    warm_up(call)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = outputs(call())
    for _ in range(2):
        expected = shuffle(call)
        graph.replay()
        wanted = outputs(expected())
        torch.cuda.synchronize()
        for result, other in zip(captured, wanted, strict=True):
            torch.testing.assert_close(result, other)
        for tensor, other in zip(call.tensors, expected.tensors, strict=True):
            torch.testing.assert_close(tensor, other)


@pytest.mark.parametrize("name", CAPTURABLE)
def test_capture_into_out(name: str) -> None:
    call = on_gpu(name)
    if not call.op.signature.takes_out:
        assert call.op.signature.mutates or "out" in [t.name for t in call.op.signature.tensors]
        return
    warm_up(call)
    out = tuple(torch.empty_like(r) for r in outputs(call()))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call(out=out if len(out) > 1 else out[0])
    expected = shuffle(call)
    graph.replay()
    torch.testing.assert_close(out, outputs(expected()))


@pytest.mark.parametrize("name", [n for n in DIFFERENTIABLE if OPS[n].capturable])
def test_capture_of_forward_and_backward(name: str) -> None:
    call = on_gpu(name)
    call = call.requiring(*call.differentiable)
    wanted = [call.tensors[place] for place in call.differentiable]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.autograd.grad(total(call()), wanted)  # type: ignore[arg-type]
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = torch.autograd.grad(total(call()), wanted)  # type: ignore[arg-type]
    with torch.no_grad():
        expected = shuffle(call)
    graph.replay()
    copies = [expected.tensors[place] for place in call.differentiable]
    torch.testing.assert_close(captured, torch.autograd.grad(total(expected()), copies))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ALL)
def test_a_call_without_a_plan_is_refused_and_the_capture_goes_on(name: str) -> None:
    call = on_gpu(name)
    call.op.drop_plans()
    graph = torch.cuda.CUDAGraph()
    beside = torch.ones(3, device="cuda")
    with torch.cuda.graph(graph):
        doubled = beside * 2
        with pytest.raises(CaptureRefused, match=f"{name}: no plan is made during graph capture"):
            call()
    graph.replay()
    torch.testing.assert_close(doubled, beside * 2)
    call()


@pytest.mark.parametrize("name", UNCAPTURABLE)
def test_what_reads_data_is_refused_and_the_capture_goes_on(name: str) -> None:
    call = on_gpu(name)
    warm_up(call)
    graph = torch.cuda.CUDAGraph()
    beside = torch.ones(3, device="cuda")
    with torch.cuda.graph(graph):
        doubled = beside * 2
        with pytest.raises(CaptureRefused, match="reference cannot run during graph capture"):
            call()
    graph.replay()
    torch.testing.assert_close(doubled, beside * 2)


def test_tracing_does_not_disturb_a_capture() -> None:
    call = on_gpu("rms_norm")
    with opmux.trace() as trace:
        warm_up(call)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
    (row,) = trace.rows
    assert row.calls == 2
