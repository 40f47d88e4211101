"""How the launcher is built and kept."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from opmux_jit.native import build, library

PACKAGE = Path(__file__).resolve().parents[1]


@pytest.fixture
def kept(monkeypatch, tmp_path) -> Path:
    """Where the extension is kept; building it writes a few bytes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(library.build, "SOURCES", tmp_path / "no wheel brought one")
    monkeypatch.setattr(library.build, "file_name", lambda: "launcher.so")
    monkeypatch.setattr(library.build, "build", lambda target: target.write_bytes(b"built"))
    return tmp_path / "opmux" / "launcher" / "launcher.so"


@pytest.mark.parametrize("contents", [b"", b"buil", b"other", None])
def test_an_extension_that_is_not_what_was_built_is_built_again(kept, contents) -> None:
    assert library.path_of_launcher() == kept
    if contents is None:
        kept.with_suffix(".json").unlink()
    else:
        kept.write_bytes(contents)
    assert library.path_of_launcher().read_bytes() == b"built"


def test_one_that_is_whole_is_not_built_again(kept, monkeypatch) -> None:
    library.path_of_launcher()
    monkeypatch.setattr(library.build, "build", lambda target: pytest.fail("built again"))
    assert library.path_of_launcher() == kept


def test_a_folder_that_others_can_write_to_is_refused(kept) -> None:
    library.path_of_launcher()
    kept.parent.chmod(0o777)
    with pytest.raises(build.BuildError) as caught:
        library.path_of_launcher()
    assert str(caught.value) == (
        f"opmux-jit: the launcher cannot be kept: {kept.parent} can be written by other users: chmod go-w {kept.parent}"
    )


def test_without_a_compiler_or_pybind11_it_is_said(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(build.BuildError) as caught:
        build.build(tmp_path / "out.so")
    assert str(caught.value) == (
        "opmux-jit: no C++ compiler found to build the launcher: install g++ or clang++, or set CXX"
    )
    monkeypatch.setitem(sys.modules, "pybind11", None)
    with pytest.raises(build.BuildError) as caught:
        build.build(tmp_path / "out.so")
    assert str(caught.value) == ('opmux-jit: building the launcher needs pybind11: pip install "opmux-jit[native]"')


def test_a_wheel_brings_the_launcher(tmp_path) -> None:
    command = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path)]
    done = subprocess.run([sys.executable, *command, str(PACKAGE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (wheel,) = tmp_path.glob("*.whl")
    assert f"-cp{sys.version_info.major}{sys.version_info.minor}-" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    assert f"opmux_jit/native/{build.file_name()}" in names
    assert "opmux_jit/native/launch.cpp" in names
