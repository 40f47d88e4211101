"""Programs and extensions that a HIP compiler built run unchanged, in processes that know nothing of the emulator."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hip_compiler import HipCompiler

from opmux_emulator.hip import environment

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> HipCompiler:
    return HipCompiler(tmp_path_factory.mktemp("hip"))


@pytest.fixture(scope="module")
def program(compiler: HipCompiler) -> Path:
    return compiler.build(HERE / "add.cpp", ("gfx942", "gfx950"))


def run(program: Path, arch: str, *words: str, **options: object) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, **environment(arch, **options)}
    return subprocess.run([str(program), *words], env=variables, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_program(program: Path, arch: str, tmp_path: Path) -> None:
    report = tmp_path / "launches.jsonl"
    done = run(program, arch, report=report)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == f"{arch}:sramecc+:xnack-, 64 threads to a warp, 42 calls, time passed\n"
    assert done.stderr == ""
    (line,) = report.read_text().splitlines()
    found = json.loads(line)
    assert (found["kernel"], found["arch"], found["judgements"]) == ("_Z3addPKfS0_Pfi", arch, [])
    assert found["counts"]["barriers"] == 4


def test_a_judgement_is_an_error_of_hip(program: Path) -> None:
    done = run(program, "gfx942", "overrun")
    assert done.returncode == 1
    assert done.stdout.startswith(
        "hipGetLastError(): a kernel accessed memory outside the allocations: _Z3addPKfS0_Pfi: out-of-bounds: reads or "
        "writes 4 bytes at allocation 0 + 0xfa0, outside its 0xfa0 bytes\n"
    )
    assert done.stderr.startswith(
        "opmux: a kernel accessed memory outside the allocations: _Z3addPKfS0_Pfi: out-of-bounds"
    )


def test_a_program_for_other_archs(program: Path) -> None:
    done = run(program, "gfx90a")
    assert done.returncode == 1
    assert done.stdout == (
        "hipMemcpyToSymbol(HIP_SYMBOL(scale), factors, sizeof factors): no code object for this device: "
        "the device plays gfx90a; this bundle has code for gfx942, gfx950\n"
    )


def test_settings_that_are_wrong(program: Path) -> None:
    variables = {**os.environ, **environment(), "OPMUX_HIP": "gfx1100"}
    done = subprocess.run([str(program)], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("opmux: OPMUX_HIP: expected gfx90a, gfx942 or gfx950, pageable, report=FILE,")
    assert done.stderr.endswith("got gfx1100\n")


def test_no_service(program: Path) -> None:
    variables = {**os.environ, **environment(), "OPMUX_HIP": "gfx942 python=/nowhere/python"}
    done = subprocess.run([str(program)], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert (
        "not initialized: the emulator's service cannot be started: /nowhere/python -m opmux_emulator.hip.service:"
        in done.stdout
    )
    assert "name a Python that has opmux-emulator" in done.stdout


def test_a_service_of_another_version(program: Path, tmp_path: Path) -> None:
    other = tmp_path / "python"
    code = (
        "from opmux_emulator.hip import service; from opmux_emulator.native import build; "
        "build.sources = lambda library: 'other'; service.main()"
    )
    other.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c "{code}"\n')
    other.chmod(0o755)
    variables = {**os.environ, **environment(), "OPMUX_HIP": f"gfx942 python={other}"}
    done = subprocess.run([str(program)], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "it is of another opmux-emulator than this library (its sources are other, this library's " in done.stdout
    assert "name a Python that has opmux-emulator" in done.stdout


def test_an_extension_in_python(compiler: HipCompiler) -> None:
    made = compiler.build(HERE / "extension.cpp", ("gfx942",), shared=True)
    script = (
        "import ctypes, torch\n"
        f"run = ctypes.CDLL({str(made)!r}).run\n"
        "x, out = torch.arange(64.), torch.zeros(64)\n"
        "pointers = [ctypes.c_void_p(t.data_ptr()) for t in (x, out)]\n"
        "assert run(*pointers, 64) == 0\n"
        "assert torch.equal(out, x * x)\n"
    )
    variables = {**os.environ, **environment(pageable=True)}
    done = subprocess.run([sys.executable, "-c", script], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    strict = {**os.environ, **environment()}
    done = subprocess.run([sys.executable, "-c", script], env=strict, capture_output=True, text=True, check=False)
    assert "out-of-bounds" in done.stderr  # tensors that nothing registered


def test_the_command(program: Path) -> None:
    words = [sys.executable, "-m", "opmux_emulator.hip", "--arch", "gfx950", "--", str(program)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("gfx950")
    done = subprocess.run([*words[:-1], "/nowhere/program"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "hip: /nowhere/program: No such file or directory\n")
    done = subprocess.run(words[:5], capture_output=True, text=True, check=False)
    assert [line.split("=")[0] for line in done.stdout.splitlines()] == [
        "export LD_LIBRARY_PATH", "export TRITON_LIBHIP_PATH", "export OPMUX_HIP",
    ]  # fmt: skip
