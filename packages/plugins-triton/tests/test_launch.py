"""Launching: recordings, what a launch is specialised on, and kernels that do not build."""

import logging
from collections.abc import Iterator

import planted_kernels as planted
import pytest
import torch
from gpu_calls import chosen
from planted_launches import COPY

import opmux
from opmux.errors import BuildFailed, CaptureRefused
from opmux.plugin import Implementation, Priority, hookimpl
from opmux.plugins.loading import temporary_plugin
from opmux_triton.launch import FUSION, launch, recorded_arch, recording


def test_a_recording_notes_launches_and_makes_none() -> None:
    assert recorded_arch() is None
    with recording("gfx942") as recorded:
        assert recorded_arch() == "gfx942"
        launch(planted.copy, (2,), COPY[1:], {"BLOCK": 2048})
    assert [(x.kernel, x.grid, dict(x.meta)) for x in recorded.launches] == [
        (planted.copy, (2,), {"BLOCK": 2048, **FUSION})
    ]


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


@pytest.mark.gpu
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


@pytest.mark.gpu
def test_a_kernel_that_does_not_build_says_what_failed() -> None:
    x = torch.randn(128, device="cuda")
    with pytest.raises(BuildFailed) as raised:
        launch(planted.not_compiling, (1,), (x, torch.empty_like(x), 128), {"BLOCK": 128})
    assert str(raised.value).startswith("kernel not_compiling did not build: CompileTimeAssertionFailure: ")
    assert "planted: this kernel does not compile" in str(raised.value)


@pytest.mark.gpu
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


@pytest.mark.gpu
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
