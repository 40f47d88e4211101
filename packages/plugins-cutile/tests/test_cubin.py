"""Resources of a kernel, read from its cubin, and what follows where it uses local memory: the next candidate runs."""

import logging
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cubins import compiled, kernel, meta
from played import launches

import opmux
from opmux.errors import BackendFault, BuildFailed
from opmux.shapes import Point
from opmux_cutile import cubin
from opmux_cutile.norms import configs
from opmux_cutile.norms.configs import NormConfig
from opmux_cutile.shipping import kernels
from opmux_jit import machine_code, prebuild

WIDE = meta(7, 8192), meta(8192)


@pytest.fixture
def spilling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms in a config that takes far more registers than there are."""
    monkeypatch.setattr(configs, "norm_config", lambda arch, features: NormConfig(4, 1))


def test_resources_are_those_of_the_machine_code(tmp_path: Path) -> None:
    fits = compiled(kernel("rms_norm", *WIDE), "sm_90", tmp_path)
    assert fits.local == fits.count("LDL") == fits.count("STL") == 0
    assert 32 < fits.registers <= 255


def test_local_memory_is_that_of_the_machine_code(spilling, tmp_path: Path) -> None:
    found = compiled(kernel("rms_norm", *WIDE), "sm_90", tmp_path)
    assert found.local > 100
    assert found.count("LDL") > 0
    assert found.count("STL") > 0


def test_what_spills_is_refused_with_the_reason(spilling) -> None:
    wanted = kernel("rms_norm", *WIDE)
    entry = machine_code(wanted.source("sm_90"))
    with pytest.raises(BuildFailed) as caught:
        wanted.code("sm_90")
    assert str(caught.value) == (
        f"rms_norm: the machine code for sm_90 expected no local memory, got {cubin.read(entry.code).local} bytes per "
        "thread, compiled with occupancy=1; registers spill: try other configs (opmux tune), or take another backend"
    )


@pytest.mark.parametrize(
    ("cut", "reason"),
    [
        (slice(4), "no ELF file of 64 bits"),
        (slice(40), "unpack_from requires a buffer of at least 48 bytes for unpacking 8 bytes at offset 40"),
    ],
)
def test_what_is_no_cubin_is_refused(cut, reason) -> None:
    entry = machine_code(kernel("rms_norm", *WIDE).source("sm_90"))
    damaged = replace(entry, code=entry.code[cut])
    with pytest.raises(BuildFailed) as caught:
        cubin.checked(damaged)
    assert str(caught.value).startswith(
        f"rms_norm: the machine code for sm_90 expected a cubin, got {len(damaged.code)} bytes that are not a cubin: "
    )
    assert reason.split(" of at least")[0] in str(caught.value)
    assert str(caught.value).endswith("; build it again")


def test_a_cubin_that_is_cut_anywhere_is_said_to_be_none() -> None:
    code = machine_code(kernel("rms_norm", *WIDE).source("sm_90")).code
    (table,) = struct.unpack_from("<Q", code, 0x28)
    for end in (*range(5, table + 8, len(code) // 50), table + 8):
        with pytest.raises(ValueError, match=r"^not a cubin: "):
            cubin.read(code[:end])


@pytest.mark.parametrize("table", [1 << 63, (1 << 64) - 1])
def test_a_cubin_whose_sections_are_past_any_file_is_said_to_be_none(table: int) -> None:
    code = bytearray(machine_code(kernel("rms_norm", *WIDE).source("sm_90")).code)
    struct.pack_into("<Q", code, 0x28, table)
    with pytest.raises(ValueError, match=r"^not a cubin: "):
        cubin.read(bytes(code))


def test_the_next_candidate_runs_and_it_is_said_once(
    spilling, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    played = []

    def take(kernel, grid, given) -> None:
        kernel.code("sm_90")  # as a launch on a GPU does first
        played.append(kernel)

    monkeypatch.setattr(launches, "play", take)
    opmux.policy.prefer("cutile")
    x, w = torch.randn(7, 8192), torch.randn(8192)
    with launches.on("sm_90"), caplog.at_level(logging.WARNING):
        for rows in (7, 7, 5):
            found = opmux.rms_norm(x[:rows], w)
            assert torch.equal(found, opmux.rms_norm(x[:rows], w, backend="reference"))
    said = [text for record in caplog.records if "quarantined" in (text := record.getMessage())]
    assert len(said) == 1
    where = "quarantined on sm_90 for calls like this one: "
    assert f"{where}rms_norm: the machine code for sm_90 expected no local memory, got " in said[0]
    assert said[0].endswith("; the next choice runs")
    assert not played


def test_where_it_is_asked_for_by_name_it_is_an_error(spilling, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "play", lambda kernel, grid, given: kernel.code("sm_90"))
    with launches.on("sm_90"), pytest.raises(BackendFault) as caught:
        opmux.rms_norm(torch.randn(7, 8192), torch.randn(8192), backend="cutile")
    assert " failed, and backend='cutile' was asked for: rms_norm: the machine code for sm_90" in str(caught.value)


def test_a_bundle_gets_no_code_that_spills(spilling, tmp_path: Path) -> None:
    points = [Point("rms_norm", {"x": torch.bfloat16, "weight": torch.bfloat16}, {"tokens": 3, "hidden": 8192})]
    made = prebuild(["sm_90"], points, tmp_path / "bundle", backend="cutile", processes=1)
    assert made.kernels == {"cutile": 0}
    (failure,) = made.failures
    assert failure.startswith("rms_norm for sm_90: rms_norm: the machine code for sm_90 expected no local memory, got ")


def test_a_wheel_gets_no_code_that_spills(spilling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "calls", lambda: iter([("rms_norm", WIDE, {})]))
    with pytest.raises(BuildFailed, match="expected no local memory"):
        list(kernels.build(tmp_path / "built", ["sm_90"], 1))
