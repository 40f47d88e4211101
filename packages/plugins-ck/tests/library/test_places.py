"""Where Composable Kernel is looked for, and what is said where it is not there, too old, or lacks something."""

import importlib.metadata
import shutil
from pathlib import Path

import pytest

from opmux.plugin import BuildFailed
from opmux_ck.library import places
from opmux_ck.library.headers import generated
from opmux_ck.library.places import Library, library_for
from opmux_ck.library.report import toolchains

TRY = (
    "  try: set OPMUX_CK_DIR to a folder or a source archive of Composable Kernel 1.1 or newer, install ROCm's package "
    "composablekernel-dev, or pip install amd-aiter"
)


class Wheel:
    """Stands for an installed distribution."""

    version = "0.1.7"

    def __init__(self, root: Path) -> None:
        self.root = root

    def locate_file(self, name: str) -> Path:
        return self.root / name


def test_where_there_is_none_each_place_has_its_reason(tmp_path) -> None:
    with pytest.raises(BuildFailed) as caught:
        library_for("rms_norm")
    assert str(caught.value).splitlines() == [
        "rms_norm: no Composable Kernel to build it from",
        "  OPMUX_CK_DIR: not set",
        f"  ROCm: no include/ck_tile/core.hpp in {tmp_path / 'no-rocm'}",
        "  no-such-package: not installed",
        TRY,
    ]


@pytest.mark.parametrize("inner", ["", "include"])
def test_the_folder_of_the_variable(ck, monkeypatch, inner) -> None:
    monkeypatch.setenv("OPMUX_CK_DIR", str(ck / inner))
    assert library_for("rms_norm") == Library(ck / "include", (1, 2, 0), "OPMUX_CK_DIR")


def test_rocms_folder_states_its_version_in_a_header(ck, monkeypatch) -> None:
    (ck / "CMakeLists.txt").unlink()
    (ck / "include/ck").mkdir()
    (ck / "include/ck/version.h").write_text(
        "#define CK_VERSION 1.1.0\n#define CK_VERSION_MAJOR 1\n#define CK_VERSION_MINOR 1\n#define CK_VERSION_PATCH 0\n"
    )
    monkeypatch.setenv("ROCM_PATH", str(ck))
    assert library_for("rms_norm") == Library(ck / "include", (1, 1, 0), "ROCm")


def test_the_wheel_comes_last(ck, monkeypatch, tmp_path) -> None:
    root = tmp_path / "site"
    shutil.copytree(ck, root / places.IN_WHEEL)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Wheel(root))
    found = library_for("rms_norm")
    assert (found.include, found.origin) == (root / places.IN_WHEEL / "include", "no-such-package 0.1.7")
    monkeypatch.setenv("ROCM_PATH", str(ck))
    assert library_for("rms_norm").origin == "ROCm"


def test_a_wheel_without_its_sources(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Wheel(tmp_path))
    with pytest.raises(BuildFailed) as caught:
        library_for("rms_norm")
    folder = tmp_path / places.IN_WHEEL
    assert f"  no-such-package: {folder} has no include/ck_tile/core.hpp" in str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("named", "reason"),
    [("gone", "{0}/gone: no such file or folder"),
     (".", "{0}/. has neither ck_tile/core.hpp nor include/ck_tile/core.hpp")],
)  # fmt: skip
def test_a_place_that_the_user_names_is_not_passed_over(ck, monkeypatch, tmp_path, named, reason) -> None:
    monkeypatch.setenv("ROCM_PATH", str(ck))
    monkeypatch.setenv("OPMUX_CK_DIR", f"{tmp_path}/{named}")
    with pytest.raises(BuildFailed) as caught:
        library_for("rms_norm")
    assert str(caught.value).splitlines() == [
        "rms_norm: no Composable Kernel to build it from",
        f"  OPMUX_CK_DIR: {reason.format(tmp_path)}",
        TRY,
    ]
    (shown,) = toolchains()
    assert (shown["version"], shown["path"]) == (reason.format(tmp_path), None)


def test_one_that_is_too_old(ck, monkeypatch) -> None:
    (ck / "CMakeLists.txt").write_text("set(version 1.0.0)\n")
    monkeypatch.setenv("OPMUX_CK_DIR", str(ck))
    with pytest.raises(BuildFailed) as caught:
        library_for("rms_norm")
    assert str(caught.value).splitlines()[1] == (
        f"  OPMUX_CK_DIR: {ck / 'include'} has version 1.0.0, older than 1.1.0"
    )
    (shown,) = toolchains()
    assert shown["version"] == "1.0.0, too old"


def test_one_that_lacks_a_header(ck, monkeypatch) -> None:
    (ck / "include/ck_tile/ops/rmsnorm2d.hpp").unlink()
    monkeypatch.setenv("OPMUX_CK_DIR", str(ck))
    with pytest.raises(BuildFailed) as caught:
        library_for("rms_norm")
    assert str(caught.value).splitlines()[1] == (
        f"  OPMUX_CK_DIR: {ck / 'include'} (version 1.2.0) lacks ck_tile/ops/rmsnorm2d.hpp"
    )
    (shown,) = toolchains()
    assert (
        shown["version"]
        == "1.2.0, lacks ck_tile/ops/rmsnorm2d.hpp for rms_norm, add_rms_norm, rms_norm_quantize, add_rms_norm_quantize"
    )


def test_one_that_lacks_what_a_part_of_an_op_needs(ck, monkeypatch) -> None:
    """As the older one that flash-attn 2.8.3 has: a product without a bias is built from it."""
    header = ck / "include/ck_tile/ops/epilogue/default_2d_epilogue.hpp"
    header.write_text("// no such names\n")
    (ck / "CMakeLists.txt").unlink()
    monkeypatch.setenv("OPMUX_CK_DIR", str(ck))
    assert library_for("linear").version is None
    with pytest.raises(BuildFailed) as caught:
        library_for("linear with a bias")
    missing = "CDElementwise in ck_tile/ops/epilogue/default_2d_epilogue.hpp"
    lines = str(caught.value).splitlines()
    assert lines[0] == "linear with a bias: no Composable Kernel to build it from"
    assert lines[1] == f"  OPMUX_CK_DIR: {ck / 'include'} (version unknown) lacks {missing}"
    (shown,) = toolchains()
    assert shown["version"] == f"unknown, lacks {missing} for linear with a bias"


def test_doctor_is_told_version_and_place(ck, monkeypatch) -> None:
    assert list(toolchains()) == [{"name": "composable kernel", "version": None, "path": None}]
    monkeypatch.setenv("ROCM_PATH", str(ck))
    assert list(toolchains()) == [{"name": "composable kernel", "version": "1.2.0", "path": f"{ck / 'include'} (ROCm)"}]


def test_a_version_that_is_stated_nowhere_is_unknown(ck, monkeypatch) -> None:
    (ck / "CMakeLists.txt").write_text("project(x)\n")
    monkeypatch.setenv("OPMUX_CK_DIR", str(ck))
    assert library_for("rms_norm").shown_version == "unknown"


def test_the_headers_that_cks_own_build_generates() -> None:
    made = generated(Library(Path("/ck"), (1, 2, 3), "ROCm"))
    assert "#define CK_VERSION 1.2.3\n#define CK_VERSION_MAJOR 1\n" in made["ck/version.h"]
    assert '#define CK_ENABLE_BF16 "ON"\n' in made["ck/config.h"]
    assert "#define CK_USE_XDL\n" in made["ck/config.h"]
