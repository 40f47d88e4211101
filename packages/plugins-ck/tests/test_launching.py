"""Instances that cannot be built or launched: one clear error each, and the next candidate runs."""

import logging

import pytest
import torch

import opmux
from opmux.plugin import BackendFault, BuildFailed, CaptureRefused, InvalidArgument
from opmux_ck.building import toolchain
from opmux_ck.launching import MOST_BYTES, launch
from opmux_ck.norms.configs import TILES
from opmux_ck.norms.instances import Norm
from opmux_ck.norms.targets import in_launches
from opmux_emulator.jit_launches import on

INSTANCE = Norm("rms_norm", "bf16", "bf16", TILES[0])


def run(backend: str | None = "ck") -> torch.Tensor:
    ones = torch.ones(2, 64, dtype=torch.bfloat16)
    return opmux.rms_norm(ones, ones[0], backend=backend)


def test_tensors_of_the_cpu_without_an_emulator() -> None:
    with pytest.raises(InvalidArgument) as caught:
        launch(INSTANCE, (1, 1, 1), torch.zeros(8))
    assert str(caught.value) == (
        "ck: rms_norm_bf16_bf16_b4x512_t4x64_v8_pad: `arguments` expected tensors on a GPU, got one on the CPU; move it"
    )


def test_an_instance_that_is_not_loaded_while_a_graph_is_captured(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with on("gfx942"), pytest.raises(CaptureRefused) as caught:
        launch(INSTANCE, (1, 1, 1), torch.zeros(8))
    assert str(caught.value) == (
        "ck: rms_norm_bf16_bf16_b4x512_t4x64_v8_pad is not loaded yet, and a graph is being captured; "
        "run the call once before the capture"
    )


def test_without_ck_the_error_says_where_it_was_looked_for() -> None:
    with on("gfx942"), pytest.raises(BackendFault, match="no Composable Kernel to build it from") as caught:
        run()
    assert "  OPMUX_CK_DIR: not set" in str(caught.value)


def test_without_a_compiler_the_error_names_all_that_were_tried(ck, monkeypatch) -> None:
    monkeypatch.setenv("OPMUX_CK_DIR", str(ck))
    monkeypatch.setattr(toolchain, "find", lambda name: None)
    with on("gfx942"), pytest.raises(BackendFault, match="no compiler for gfx942") as caught:
        run()
    assert "  zig: not found" in str(caught.value)


@pytest.fixture
def broken(ck, monkeypatch) -> None:
    """A CK that the compiler refuses, with as many errors as it prints."""
    errors = "".join(f'static_assert(false, "rule {n}");\n' for n in range(12))
    (ck / "include/ck_tile/core.hpp").write_text(errors)
    monkeypatch.setenv("OPMUX_CK_DIR", str(ck))
    monkeypatch.setattr(toolchain, "NAMES", ("zig",))


@pytest.mark.usefixtures("broken")
def test_an_instance_that_the_compiler_refuses_has_its_error_whole() -> None:
    with on("gfx942"), pytest.raises(BackendFault) as caught:
        run()
    said = str(caught.value)
    assert "rms_norm_bf16_bf16_b4x512_t4x64_v8_pad: zig " in said
    assert "could not compile it for gfx942" in said
    assert all(f"rule {n}" in said for n in range(10))


@pytest.mark.usefixtures("broken")
def test_the_next_candidate_runs_and_it_is_announced(caplog) -> None:
    opmux.policy.prefer("ck")
    with on("gfx942"), caplog.at_level(logging.WARNING, "opmux"):
        found = run(None)
    torch.testing.assert_close(found, torch.ones_like(found))
    assert any("could not compile it for gfx942" in record.getMessage() for record in caplog.records)


@pytest.mark.usefixtures("broken")
def test_nothing_is_compiled_where_that_is_forbidden(monkeypatch) -> None:
    monkeypatch.setenv("OPMUX_NO_JIT", "1")
    with on("gfx942"), pytest.raises(BackendFault, match="OPMUX_NO_JIT forbids compiling"):
        run()


def test_matrices_that_a_launch_cannot_address_are_cut() -> None:
    x = torch.empty(100_000, 32768, dtype=torch.bfloat16, device="meta")
    parts = [len(part) for part, _ in in_launches(x, x[:, :16384])]
    assert sum(parts) == len(x)
    assert max(parts) * 32768 * 2 <= MOST_BYTES
    assert [len(part) for part, _ in in_launches(x[:7], x[:7])] == [7]


def test_a_build_failure_is_what_the_core_falls_back_from() -> None:
    with on("gfx942"), pytest.raises(BuildFailed):
        launch(INSTANCE, (1, 1, 1), torch.zeros(8))
