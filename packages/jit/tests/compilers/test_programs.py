"""Compilers that are programs: found, asked for their version, run; scripts stand for them."""

import os
from pathlib import Path

import pytest
from kernels import ADD, add

from opmux_jit import CompileFailed, Source
from opmux_jit.compilers import programs
from opmux_jit.compilers.environment import NOT_INHERITED

NVCC, HIPCC, CLANG = programs.KINDS
SAYS = {
    "nvcc": "release 13.0, V13.0.88",
    "hipcc": "HIP version: 6.4.43482-0f2d60242",
    "clang++": "clang version 19.1.7",
}


def script(folder: Path, name: str, body: str) -> Path:
    """A program that says a version, and does `body` for anything else."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo "{SAYS[name]}"; exit 0; fi\n{body}\n')
    path.chmod(0o755)
    return path


ECHO = 'printf "%s\\n" "$@" > args; while [ "$1" != -o ]; do shift; done; printf code > "$2"'
"""Writes its arguments beside, and code."""


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    for name in ("CUDA_HOME", "CUDA_PATH", "ROCM_PATH", "HIP_PATH", "LLVM_PATH"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("kind", "version", "arch", "options"),
    [
        (NVCC, "13.0.88", "sm_90a", ["-cubin", "-arch=sm_90a", "-std=c++17"]),
        (
            HIPCC,
            "6.4.43482",
            "gfx942",
            ["--genco", "--no-gpu-bundle-output", "--offload-arch=gfx942", "-O3", "-std=c++17"],
        ),
        (
            CLANG,
            "19.1.7",
            "gfx90a",
            ["-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output", "--offload-arch=gfx90a", "-nogpuinc",
             "-nogpulib", "-O3", "-std=c++17"],
        ),
    ],
    ids=lambda value: value.name if isinstance(value, programs.Kind) else None,
)  # fmt: skip
def test_each_is_found_and_run(kind, version, arch, options, tmp_path) -> None:
    path = script(tmp_path / "bin", kind.program, ECHO)
    found = programs.find(kind)
    assert found is not None
    assert (found.name, found.version, found.path) == (kind.name, version, path)
    work = tmp_path / "work"
    work.mkdir()
    source = Source("k", ADD, arch, ("-G",), (Path("/opt/include"),), {"deep/a.h": "1"})
    assert found.compile(source, work) == b"code"
    file = work / f"k{source.suffix}"
    wanted = [*options, "-G", f"-I{work / 'headers'}", "-I/opt/include", "-o", str(work / "out.bin"), str(file)]
    assert (work / "args").read_text().splitlines() == wanted
    assert file.read_text() == ADD
    assert (work / "headers/deep/a.h").read_text() == "1"


def test_the_folder_of_a_variable_comes_before_the_path(monkeypatch, tmp_path) -> None:
    script(tmp_path / "bin", "nvcc", ECHO)
    wanted = script(tmp_path / "toolkit" / "bin", "nvcc", ECHO)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    found = programs.find(NVCC)
    assert found is not None
    assert found.path == wanted


def test_one_that_does_not_run_is_not_found(tmp_path) -> None:
    path = script(tmp_path / "bin", "hipcc", "")
    path.write_text("#!/no/such/interpreter\n")
    assert programs.find(HIPCC) is None


def test_an_error_has_the_command_and_all_that_was_printed(tmp_path) -> None:
    path = script(tmp_path / "bin", "nvcc", "echo on stdout; seq 1 500 >&2; exit 3")
    found = programs.find(NVCC)
    assert found is not None
    with pytest.raises(CompileFailed) as caught:
        found.compile(add(), tmp_path)
    lines = str(caught.value).splitlines()
    file, out = tmp_path / "add.cu", tmp_path / "out.bin"
    assert lines[:5] == [
        f"add: nvcc 13.0.88 ({path}) could not compile it for sm_90",
        f"  source: {file}",
        f"{path} -cubin -arch=sm_90 -std=c++17 -o {out} {file}",
        "exit status 3",
        "on stdout",
    ]
    assert lines[5:] == [str(n) for n in range(1, 501)]
    assert file.read_text() == ADD


def test_one_that_writes_nothing_has_failed(tmp_path) -> None:
    script(tmp_path / "bin", "nvcc", "exit 0")
    found = programs.find(NVCC)
    assert found is not None
    with pytest.raises(CompileFailed, match="exit status 0"):
        found.compile(add(), tmp_path)


def test_one_that_is_gone_has_failed(tmp_path) -> None:
    path = script(tmp_path / "bin", "nvcc", "exit 0")
    found = programs.find(NVCC)
    assert found is not None
    os.unlink(path)
    with pytest.raises(CompileFailed, match="No such file"):
        found.compile(add(), tmp_path)


@pytest.mark.parametrize(("kind", "arch"), [(NVCC, "gfx942"), (HIPCC, "sm_90"), (CLANG, "sm_90")])
def test_archs_of_the_other_vendor_are_refused(kind, arch) -> None:
    found = programs.Program(kind, Path("/bin/true"), "1")
    assert found.refusal(add(arch=arch)) == f"{kind.name} is used for {kind.vendor}'s archs, not {arch}"


def test_one_that_writes_an_empty_file_has_failed(tmp_path) -> None:
    script(tmp_path / "bin", "nvcc", 'while [ "$1" != -o ]; do shift; done; : > "$2"')
    found = programs.find(NVCC)
    assert found is not None
    with pytest.raises(CompileFailed, match="exit status 0"):
        found.compile(add(), tmp_path)


def test_output_that_is_not_utf_8_is_kept_in_the_error(tmp_path) -> None:
    script(tmp_path / "bin", "nvcc", r"printf 'gr\374n\n' >&2; exit 3")
    found = programs.find(NVCC)
    assert found is not None
    with pytest.raises(CompileFailed) as caught:
        found.compile(add(), tmp_path)
    assert str(caught.value).splitlines()[-1] == "gr\ufffdn"


def test_a_compiler_does_not_see_variables_that_the_key_lacks(monkeypatch, tmp_path) -> None:
    script(tmp_path / "bin", "nvcc", f"env > env; {ECHO}")
    for name in NOT_INHERITED:
        monkeypatch.setenv(name, "-DCHANGED")
    monkeypatch.setenv("LICENSE_SERVER", "kept")
    found = programs.find(NVCC)
    assert found is not None
    assert found.compile(add(), tmp_path) == b"code"
    seen = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines() if "=" in line)
    assert NOT_INHERITED.isdisjoint(seen)
    assert seen["LICENSE_SERVER"] == "kept"
