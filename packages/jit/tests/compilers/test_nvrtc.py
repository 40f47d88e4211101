"""NVRTC, the real one: it compiles to cubins without a GPU, and its errors come whole."""

import ctypes
import re
from pathlib import Path

import pytest
from kernels import add

from opmux_jit import CompileFailed, CompilerMissing, Source
from opmux_jit.compilers import nvrtc


def real() -> nvrtc.Nvrtc:
    found = nvrtc.find()
    assert found is not None, 'NVRTC is needed: pip install "nvidia-cuda-nvrtc"'
    return found


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_90a"])
def test_it_compiles_to_machine_code(arch, tmp_path) -> None:
    code = real().compile(add(arch=arch), tmp_path)
    assert code[:4] == b"\x7fELF"
    assert b".text.add" in code
    assert list(tmp_path.iterdir()) == []


def test_headers_in_memory_and_in_folders_are_found(tmp_path) -> None:
    (tmp_path / "one.h").write_text("#define ONE 1\n")
    text = '#include <one.h>\n#include "two.h"\nextern "C" __global__ void k(int* x) { *x = ONE + TWO; }\n'
    source = Source("k", text, "sm_90", include_dirs=(tmp_path,), headers={"two.h": "#define TWO 2\n"})
    assert real().compile(source, tmp_path)[:4] == b"\x7fELF"


def test_an_error_has_all_that_nvrtc_said_and_the_path_of_the_source(tmp_path) -> None:
    text = "\n".join(f'extern "C" __global__ void k{i}(int* x) {{ *x = missing_{i}; }}' for i in range(30))
    compiler = real()
    with pytest.raises(CompileFailed) as caught:
        compiler.compile(Source("broken", text, "sm_90"), tmp_path)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"broken: nvrtc {compiler.version} ({compiler.path}) could not compile it for sm_90"
    assert lines[1] == f"  source: {tmp_path / 'broken.cu'}"
    assert lines[2] == 'broken.cu(1): error: identifier "missing_0" is undefined'
    assert 'broken.cu(30): error: identifier "missing_29" is undefined' in lines
    assert (tmp_path / "broken.cu").read_text() == text


def test_an_option_that_nvrtc_does_not_know_is_said(tmp_path) -> None:
    with pytest.raises(CompileFailed, match="--no-such-option"):
        real().compile(add(flags=("--no-such-option",)), tmp_path)


@pytest.mark.parametrize(
    ("arch", "reason"),
    [("gfx942", "nvrtc compiles for NVIDIA's archs, not gfx942"), ("sm_20", "nvrtc .* compiles for sm_.*, not sm_20")],
)
def test_archs_that_it_does_not_compile_for_are_refused(arch, reason) -> None:
    refusal = real().refusal(add(arch=arch))
    assert refusal is not None
    assert re.fullmatch(reason, refusal)


class Old:
    """A library that says it is NVRTC 11.8."""

    def nvrtcVersion(self, major, minor) -> int:
        ctypes.cast(major, ctypes.POINTER(ctypes.c_int))[0] = 11
        ctypes.cast(minor, ctypes.POINTER(ctypes.c_int))[0] = 8
        return 0


def test_one_that_is_too_old_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda path: Old())
    with pytest.raises(CompilerMissing) as caught:
        nvrtc.Nvrtc(Path("/opt/libnvrtc.so.11"))
    assert str(caught.value) == (
        'nvrtc: /opt/libnvrtc.so.11 is version 11.8, 12.0 or newer is needed; pip install -U "nvidia-cuda-nvrtc"'
    )


def test_a_file_that_is_no_library_is_refused(tmp_path) -> None:
    path = tmp_path / "libnvrtc.so.13"
    path.write_text("not a library")
    with pytest.raises(CompilerMissing, match=r"^nvrtc: .*libnvrtc.so.13 cannot be loaded: "):
        nvrtc.Nvrtc(path)


def test_wheels_come_before_toolkits_and_newer_before_older(monkeypatch, tmp_path) -> None:
    for name in ("nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12", "lib64/libnvrtc.so.12.9"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "lib64/libnvrtc.so.12.9.alt").touch()
    monkeypatch.setattr(nvrtc.sys, "path", [str(tmp_path)])
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv("CUDA_PATH", str(tmp_path / "none"))
    found = [str(p) for p in nvrtc.candidates() if str(p).startswith(str(tmp_path))]
    assert [p.removeprefix(f"{tmp_path}/") for p in found] == [
        "nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12", "lib64/libnvrtc.so.12.9",
    ]  # fmt: skip


class Failing:
    """The real library, of which one call fails or says that there are 0 bytes."""

    def __init__(self, library: ctypes.CDLL, call: str, code: int) -> None:
        self._library, self._call, self._code = library, call, code

    def __getattr__(self, name: str):
        return (lambda program, held: self._code) if name == self._call else getattr(self._library, name)


@pytest.mark.parametrize(
    ("call", "code", "said"),
    [
        ("nvrtcGetCUBINSize", 3, "nvrtcGetCUBINSize: NVRTC_ERROR_INVALID_INPUT"),
        ("nvrtcGetCUBINSize", 0, "nvrtcGetCUBINSize: it has 0 bytes"),
        ("nvrtcGetCUBIN", 3, "nvrtcGetCUBIN: NVRTC_ERROR_INVALID_INPUT"),
    ],
)
def test_machine_code_that_is_not_handed_over_is_a_failure(tmp_path, call, code, said) -> None:
    compiler = nvrtc.Nvrtc(real().path)
    compiler._library = Failing(compiler._library, call, code)  # type: ignore[assignment]
    with pytest.raises(CompileFailed) as caught:
        compiler.compile(add(), tmp_path)
    assert str(caught.value).splitlines() == [
        f"add: nvrtc {compiler.version} ({compiler.path}) could not compile it for sm_90",
        f"  source: {tmp_path / 'add.cu'}",
        said,
    ]
    assert (tmp_path / "add.cu").read_text() == add().text


def test_an_error_whose_log_cannot_be_had_names_the_options(tmp_path) -> None:
    compiler = nvrtc.Nvrtc(real().path)
    compiler._library = Failing(compiler._library, "nvrtcGetProgramLog", 3)  # type: ignore[assignment]
    with pytest.raises(CompileFailed) as caught:
        compiler.compile(Source("broken", "?", "sm_90"), tmp_path)
    assert str(caught.value).splitlines()[2] == (
        "NVRTC_ERROR_COMPILATION; options: --gpu-architecture=sm_90 --std=c++17"
    )


def library(folder: Path, name: str, *wheels: str) -> Path:
    """A file that is named as an NVRTC, in a folder of installed packages."""
    for wheel in wheels:
        (folder / f"{wheel}.dist-info").mkdir(parents=True)
    path = folder / "nvidia" / "cu13" / "lib" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    return path


def test_patch_releases_are_told_apart_without_loading_a_library(tmp_path) -> None:
    wheel = library(tmp_path / "a", "libnvrtc.so.13", "nvidia_cuda_nvrtc-13.0.88", "nvidia_cuda_nvrtc_cu12-12.9.86")
    assert nvrtc.stated_version(wheel) == "13.0.88"
    toolkit = library(tmp_path / "b", "libnvrtc.so.13.0.48")
    link = toolkit.with_name("libnvrtc.so.13")
    link.symlink_to(toolkit)
    assert nvrtc.stated_version(link) == "13.0.48"
    assert nvrtc.stated_version(library(tmp_path / "c", "libnvrtc.so.13")) is None
    both = library(tmp_path / "d", "libnvrtc.so.13", "nvidia_cuda_nvrtc-13.0.88", "nvidia_cuda_nvrtc-13.0.48")
    assert nvrtc.stated_version(both) is None
    assert nvrtc.stated_version(Path("libnvrtc.so.13")) is None


def test_what_files_say_is_what_the_library_is(monkeypatch) -> None:
    nvrtc.likely_version.cache_clear()
    assert nvrtc.likely_version() in (real().version, None)
    nvrtc.likely_version.cache_clear()
    monkeypatch.setattr(nvrtc, "stated_version", lambda path: "11.8.89")
    assert nvrtc.likely_version() is None, "too old to be used"
    nvrtc.likely_version.cache_clear()
