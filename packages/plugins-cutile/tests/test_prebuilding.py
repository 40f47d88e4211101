"""Kernels of recorded calls, compiled ahead into a bundle; what is said where there is neither cubin nor compiler."""

from pathlib import Path

import pytest
import torch
from cubins import kernel, kernels, meta

import opmux
from opmux.shapes import Point
from opmux_cutile.norms import configs
from opmux_cutile.prebuilding import takers_of
from opmux_jit import CompileFailed, CompilerMissing, KernelMissing, machine_code, prebuild
from opmux_jit.cache import layers
from opmux_jit.compilers import tile

BF16 = {"x": torch.bfloat16, "weight": torch.bfloat16}
POINTS = [
    Point("rms_norm", BF16, {"tokens": 3, "hidden": 256}),
    Point("rms_norm", BF16, {"tokens": 4, "hidden": 256}),
    Point("rms_norm", BF16, {"tokens": 4, "hidden": 20000}),
]
"""Two calls of one kernel, and one that the backend refuses."""


@pytest.fixture(autouse=True)
def forgetful():
    """Machine code is read again in every test."""
    layers.forget()
    yield
    layers.forget()


def test_a_bundle_serves_where_there_is_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = prebuild(["sm_90"], POINTS, tmp_path / "bundle", backend="cutile", processes=2)
    assert (made.kernels, made.failures, made.written) == ({"cutile": 1}, [], True)
    monkeypatch.setenv("OPMUX_CACHE", str(tmp_path / "empty"))
    monkeypatch.setenv("OPMUX_BUNDLES", str(tmp_path / "bundle"))
    monkeypatch.setattr(tile, "find", lambda: None)
    assert machine_code(kernel("rms_norm", meta(9, 256), meta(256)).source("sm_90")).code[:4] == b"\x7fELF"
    wanted = kernel("rms_norm", meta(9, 512), meta(512)).source("sm_90")
    with pytest.raises(CompilerMissing) as caught:
        machine_code(wanted)
    assert str(caught.value).splitlines() == [
        "rms_norm: no compiler for sm_90",
        "  cutile: not found",
        '  try: pip install "opmux-cutile[compiler]", or build it where that is installed: opmux prebuild --arch sm_90 '
        "--backend cutile --op rms_norm --shapes FILE --out DIR",
    ]
    monkeypatch.setenv("OPMUX_NO_JIT", "1")
    with pytest.raises(KernelMissing, match="opmux prebuild --arch sm_90 --backend cutile --op rms_norm --shapes"):
        machine_code(wanted)


def test_a_kernel_that_does_not_compile_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: tile.Tile, source: object, folder: Path) -> bytes:
        raise CompileFailed("no such instruction")

    monkeypatch.setattr(tile.Tile, "compile", refuse)
    made = prebuild(["sm_90"], POINTS[:1], tmp_path / "bundle", backend="cutile", processes=1)
    assert made.failures == ["rms_norm for sm_90: no such instruction"]


def test_a_config_that_cannot_be_chosen_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arch: object, features: object) -> configs.NormConfig:
        raise ValueError("no config")

    monkeypatch.setattr(configs, "norm_config", fail)
    (failure,) = prebuild(["sm_90"], POINTS[:1], tmp_path / "bundle", backend="cutile", processes=1).failures
    assert failure.endswith(" cutile: ValueError: no config")


def test_an_arch_that_the_compiler_does_not_know_is_its_error(tmp_path: Path) -> None:
    with pytest.raises(CompileFailed, match="could not compile it for sm_999"):
        machine_code(kernel("rms_norm", meta(9, 256), meta(256)).source("sm_999"))


@pytest.mark.parametrize(("arch", "name"), [("sm_80", "cutile:gathered"), ("sm_90", "cutile")])
def test_kernels_of_records_that_are_taken_by_their_own_name_alone_are_built_too(arch, name) -> None:
    found = takers_of(opmux.linear, meta(4, 16), meta(8, 16), None, arch=arch)
    assert [taker.implementation.full_name for taker in found] == [name]


@pytest.mark.parametrize(("seq", "options", "occupancy"), [
    (1024, {}, [2, 4]), (16384, {}, [4, 2]), (16384, {"window": (100, 0)}, [2]), (16384, {"softcap": 5.0}, [2]),
])  # fmt: skip
def test_a_call_of_narrow_heads_has_the_tile_for_another_number_of_blocks_built_too(seq, options, occupancy) -> None:
    q, k = meta(1, seq, 8, 64), meta(1, seq, 2, 64)
    found = kernels("attention", q, k, k, None, causal=True, **options)
    assert [each.hints["occupancy"] for each in found] == occupancy
    assert [each.hints["occupancy"] for each in kernels("attention_lse", q, k, k, None)] == [2]
