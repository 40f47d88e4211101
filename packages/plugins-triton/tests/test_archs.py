"""Which archs are claimed, and the facts that configs count with."""

import tomllib
from pathlib import Path

import pytest

from opmux.plugin import parse_arch
from opmux_triton.archs import (
    AMD,
    CDNA,
    HOPPER,
    NVIDIA,
    PORTABLE,
    lanes_of_rows,
    shared_memory,
    usual_units,
    wave_size,
)


def test_every_arch_is_claimed_once_and_by_its_own_name() -> None:
    assert len(set(PORTABLE)) == len(PORTABLE)
    assert [parse_arch(name).name for name in PORTABLE] == list(PORTABLE)
    assert {parse_arch(name).vendor for name in NVIDIA} == {"nvidia"}
    assert {parse_arch(name).vendor for name in AMD} == {"amd"}
    assert {*HOPPER, *CDNA} <= {*PORTABLE}


def test_what_is_claimed_is_what_has_been_compiled() -> None:
    folder = Path(__file__).parents[1] / "machine-code"
    compiled = tomllib.loads((folder / "compiled.toml").read_text())
    assert set(compiled) == set(PORTABLE)
    records = {file.stem for file in folder.glob("*.json")}
    assert {arch for arch, row in compiled.items() if row["scope"] == "record"} == records
    for arch in set(compiled) - records:
        assert compiled[arch]["scope"] in ("configs", "sample")
        assert compiled[arch]["compiled"] > compiled[arch]["complaints"] >= 0


@pytest.mark.parametrize(
    ("arch", "kib"),
    [("sm_80", 163), ("sm_86", 99), ("sm_90", 227), ("sm_120", 99), ("gfx942", 64), ("gfx950", 160), ("gfx1201", 64)],
)
def test_shared_memory(arch: str, kib: int) -> None:
    assert shared_memory(arch) == kib * 1024


@pytest.mark.parametrize(("arch", "lanes"), [("sm_90", 32), ("gfx90a", 64), ("gfx942", 64), ("gfx1100", 32)])
def test_lanes_of_a_wave(arch: str, lanes: int) -> None:
    assert wave_size(arch) == lanes


def test_rdna_counts_rows_like_cdna() -> None:
    assert [lanes_of_rows(parse_arch(name)) for name in ("sm_90", "gfx942", "gfx1100")] == [32, 64, 64]


def test_units_of_the_usual_product() -> None:
    assert (usual_units("sm_90"), usual_units("gfx942"), usual_units("gfx1100")) == (132, 304, 64)
