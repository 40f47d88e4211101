"""Which toolchains this machine has."""

import importlib.metadata
import stat
from pathlib import Path

from backends import plugin

from opmux.cli import toolchains
from opmux.plugins.loading import temporary_plugin


def executable(path: Path, says: str) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_compilers_are_found_on_the_path_and_in_their_homes(monkeypatch, tmp_path: Path) -> None:
    nvcc = executable(tmp_path / "bin" / "nvcc", "Cuda compilation tools, release 12.4, V12.4.131")
    hipcc = executable(tmp_path / "rocm" / "bin" / "hipcc", "HIP version: 6.2.41133-dd7f95766")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    _, found_nvcc, found_hipcc = toolchains.toolchains()[:3]
    assert found_nvcc == {"name": "nvcc", "version": "12.4", "path": str(nvcc)}
    assert found_hipcc == {"name": "hipcc", "version": "6.2.41133", "path": str(hipcc)}


def test_a_compiler_that_says_no_version_has_none(monkeypatch, tmp_path: Path) -> None:
    executable(tmp_path / "nvcc", "?")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert toolchains.toolchains()[1] == {"name": "nvcc", "version": None, "path": str(tmp_path / "nvcc")}


def test_toolchains_that_are_absent_are_listed_without_version_or_path(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CUDA_HOME", "CUDA_PATH", "ROCM_PATH", "HIP_PATH"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(
        toolchains, "_COMPILERS", {n: (v, str(tmp_path), p) for n, (v, _, p) in toolchains._COMPILERS.items()}
    )
    monkeypatch.setattr(toolchains, "_TRITON", ("no-such-distribution",))
    assert toolchains.toolchains() == [
        {"name": name, "version": None, "path": None} for name in ("triton", "nvcc", "hipcc")
    ]


def test_triton_is_looked_up_by_its_distribution(monkeypatch) -> None:
    monkeypatch.setattr(toolchains, "_TRITON", ("no-such-distribution", "torch"))
    # The distribution's version, which may lack the build's suffix that torch.__version__ has.
    assert toolchains.toolchains()[0]["version"] == importlib.metadata.version("torch")


def test_plugins_add_the_toolchains_that_they_know(caplog) -> None:
    def broken() -> list[dict[str, str | None]]:
        raise OSError("a library that does not load")

    nvrtc = {"name": "nvrtc", "version": "13.5", "path": "/lib/libnvrtc.so.13"}
    with temporary_plugin(plugin(opmux_toolchains=lambda: [broken, lambda: [nvrtc]]), "compiling"):
        assert toolchains.toolchains()[3:] == [nvrtc]
    assert nvrtc not in toolchains.toolchains()
    (said,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert said == ("plugin compiling: looking for its toolchains failed: OSError('a library that does not load')")
