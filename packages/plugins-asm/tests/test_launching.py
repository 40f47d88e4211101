"""Launches that cannot be made: one clear error each, and the process goes on."""

import os
import subprocess
import sys

import pytest
import torch

import opmux
from opmux.plugin import BackendFault, BuildFailed, CaptureRefused, InvalidArgument
from opmux_asm import launching
from opmux_asm.objects import reading
from opmux_emulator.jit_launches import on


def test_tensors_of_the_cpu_without_an_emulator() -> None:
    with pytest.raises(InvalidArgument) as caught:
        launching.launch("rms_norm", "rms_norm_bf16_bf16_w1c1", (1, 1, 1), torch.zeros(8))
    assert str(caught.value) == (
        "asm: rms_norm_bf16_bf16_w1c1: `arguments` expected tensors on a GPU, got one on the CPU; move it"
    )


def test_a_kernel_that_there_is_not() -> None:
    with (
        on("gfx942"),
        pytest.raises(BuildFailed, match=r"^asm: rms_norm for gfx942 has no kernel nothing; it has rms_"),
    ):
        launching.launch("rms_norm", "nothing", (1, 1, 1), torch.zeros(8))


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "_launches", {})
    monkeypatch.setattr(launching, "_modules", {})


def run() -> torch.Tensor:
    return opmux.rms_norm(torch.ones(2, 64), torch.ones(64), backend="asm")


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        (lambda found: found["gfx950"], "hipErrorNoBinaryForGpu"),
        (lambda found: found["gfx942"][:2000], "hipErrorInvalidImage"),
        (lambda found: b"\x7fELF" + bytes(2000), "hipErrorInvalidImage"),
    ],
    ids=["another arch's", "truncated", "foreign"],
)
def test_a_code_object_that_the_driver_refuses(monkeypatch: pytest.MonkeyPatch, damaged: object, message: str) -> None:
    whole = {arch: reading.code_object("rms_norm", arch) for arch in ("gfx942", "gfx950")}
    code = damaged({arch: found.code for arch, found in whole.items()})  # type: ignore[operator]
    monkeypatch.setattr(launching, "code_object", lambda family, arch: reading.CodeObject(code, whole[arch].kernels))
    with on("gfx942"), pytest.raises(BackendFault, match="the driver does not load it on device 0") as caught:
        run()
    assert message in str(caught.value)
    monkeypatch.setattr(launching, "code_object", reading.code_object)
    opmux.quarantine_clear()
    with on("gfx942"):
        torch.testing.assert_close(run(), torch.ones(2, 64))


@pytest.mark.usefixtures("fresh")
def test_a_kernel_that_is_not_loaded_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with on("gfx942"), pytest.raises(CaptureRefused) as caught:
        launching.launch("rms_norm", "rms_norm_bf16_bf16_w1c1", (1, 1, 1), torch.zeros(8))
    assert str(caught.value) == (
        "asm: kernel rms_norm_bf16_bf16_w1c1 is not loaded yet, and a graph is being captured; "
        "run the call once before the capture"
    )


SCRIPT = """
import torch
import opmux.errors
from opmux.plugin import cpu_plays
from opmux_jit.launching import hosted
import contextlib

with cpu_plays("gfx942"), hosted(lambda arguments: contextlib.nullcontext()):
    try:
        opmux.rms_norm(torch.ones(2, 64), torch.ones(64), backend="asm")
    except opmux.errors.OpmuxError as error:
        print(error)
"""


def test_a_machine_without_a_hip_library() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"} | {"OPMUX_PLUGINS": "asm"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    assert "no driver for amd's GPUs: libamdhip64.so cannot be opened: " in done.stdout, done.stdout
