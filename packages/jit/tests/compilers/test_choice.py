"""Which compiler is used, and what is said where there is none."""

import pytest
from kernels import Counting, add

from opmux.plugin import InvalidArgument
from opmux_jit import CompilerMissing, choose
from opmux_jit.compilers import choice


@pytest.fixture
def present(monkeypatch) -> dict[str, Counting]:
    """The compilers that are installed."""
    found: dict[str, Counting] = {}
    monkeypatch.setattr(choice, "find", found.get)
    return found


def test_the_first_that_is_there_is_taken(present) -> None:
    present["nvcc"] = Counting("nvcc")
    assert choose(add()).name == "nvcc"
    present["nvrtc"] = Counting("nvrtc")
    assert choose(add()).name == "nvrtc"
    assert choose(add(), "nvcc").name == "nvcc"


def test_a_name_that_none_has_is_wrong_use(present) -> None:
    with pytest.raises(InvalidArgument) as caught:
        choose(add(), "gcc")
    assert str(caught.value) == (
        "compile: `compiler` expected one of nvrtc, nvcc, hipcc, clang, zig, cutile, got 'gcc'; leave it out"
    )


def test_where_none_fits_each_has_its_reason(present, monkeypatch) -> None:
    present["nvrtc"] = Counting("nvrtc")
    monkeypatch.setattr(Counting, "refusal", lambda self, source: "it is too old")
    with pytest.raises(CompilerMissing) as caught:
        choose(add())
    assert str(caught.value).splitlines() == [
        "add: no compiler for sm_90",
        "  nvrtc: it is too old",
        "  nvcc: not found",
        "  hipcc: not found",
        "  clang: not found",
        "  zig: not found",
        '  try: pip install "opmux-jit[nvrtc]", or install a CUDA toolkit and set CUDA_HOME',
    ]


def test_the_one_that_was_asked_for_is_not_replaced(present) -> None:
    present["nvrtc"] = Counting("nvrtc")
    with pytest.raises(CompilerMissing) as caught:
        choose(add(arch="gfx942"), "hipcc")
    assert str(caught.value).splitlines() == [
        "add: no compiler for gfx942",
        "  hipcc: not found",
        '  try: install ROCm and set ROCM_PATH, or put clang++ on the path, or pip install "opmux-jit[zig]"',
    ]


def test_doctor_is_told_of_those_that_the_core_does_not_look_for(present) -> None:
    present["nvrtc"] = Counting("nvrtc")
    assert list(choice.toolchains()) == [
        {"name": "nvrtc", "version": "13.5", "path": "/lib/libnvrtc.so.13"},
        {"name": "clang", "version": None, "path": None},
        {"name": "zig", "version": None, "path": None},
        {"name": "cutile", "version": None, "path": None},
    ]
