"""The clang of the package ziglang: code objects without ROCm."""

from pathlib import Path

import pytest
from kernels import add

from opmux_jit import CompileFailed, Source, machine_code
from opmux_jit.cache import layers
from opmux_jit.compilers import zig

HIP = """#include "coordinates.h"
extern "C" __attribute__((global)) void add(const float* a, const float* b, float* c, int n) {
  int i = workgroup() * 256 + __builtin_amdgcn_workitem_id_x();
  if (i < n) c[i] = a[i] + b[i];
}
"""
COORDINATES = "inline __attribute__((device)) unsigned workgroup() { return __builtin_amdgcn_workgroup_id_x(); }\n"


@pytest.fixture
def compiler() -> zig.Zig:
    found = zig.find()
    assert found is not None
    return found


def test_a_code_object_with_the_kernel(compiler) -> None:
    entry = machine_code(Source("add", HIP, "gfx942", headers={"coordinates.h": COORDINATES}), "zig")
    assert entry.compiler == f"zig {compiler.version} with {compiler.library}"
    assert entry.code.startswith(b"\x7fELF")
    assert b"add.kd" in entry.code


def test_an_error_has_the_command_and_all_that_was_printed(compiler, tmp_path) -> None:
    with pytest.raises(CompileFailed) as caught:
        compiler.compile(Source("add", HIP, "gfx942"), tmp_path)
    lines = str(caught.value).splitlines()
    assert lines[:2] == [
        f"add: zig {compiler.version} with {compiler.library} ({compiler.path}) could not compile it for gfx942",
        f"  source: {tmp_path / 'add.hip'}",
    ]
    assert lines[2].startswith(f"{compiler.path} clang -x hip --cuda-device-only --offload-arch=gfx942 ")
    assert lines[3] == "exit status 1"
    assert "fatal error: 'coordinates.h' file not found" in lines[4]


def test_a_function_that_nothing_defines_is_the_linkers_error(compiler, tmp_path) -> None:
    text = """__attribute__((device)) float missing(float);
extern "C" __attribute__((global)) void call(float* a) { *a = missing(*a); }
"""
    with pytest.raises(CompileFailed, match=r"undefined (hidden )?symbol: missing\(float\)"):
        compiler.compile(Source("call", text, "gfx942"), tmp_path)


def test_the_headers_of_another_standard_library_are_another_key(compiler, monkeypatch) -> None:
    """The host's library is no part of the package, and changes under the cache when the system is upgraded."""
    source = Source("add", HIP, "gfx942", headers={"coordinates.h": COORDINATES})
    first = machine_code(source, "zig")
    layers.forget()
    monkeypatch.setattr(zig, "standard_library", lambda *command: "libstdc++ 20991231")
    second = machine_code(source, "zig")
    assert second.compiler == f"zig {compiler.version} with libstdc++ 20991231"
    assert first.key != second.key


def test_archs_of_the_other_vendor_are_refused() -> None:
    assert zig.Zig(Path("/bin/true"), "1").refusal(add()) == "zig is used for amd's archs, not sm_90"


def test_a_program_that_is_gone_has_failed(tmp_path) -> None:
    with pytest.raises(CompileFailed, match="No such file"):
        zig.Zig(tmp_path / "zig", "1").compile(Source("add", HIP, "gfx942"), tmp_path)


def test_where_the_package_is_not_installed(monkeypatch) -> None:
    monkeypatch.setattr(zig.importlib.util, "find_spec", lambda name: None)
    assert zig.find() is None
