"""Which C++ standard library a compiler finds; scripts stand for compilers."""

from pathlib import Path

import pytest

from opmux_jit.compilers.standard_library import standard_library


def script(folder: Path, body: str) -> str:
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("defines", "found"),
    [
        ("#define __GLIBCXX__ 20220819", "libstdc++ 20220819"),
        ("#define _LIBCPP_VERSION 190107", "libc++ 190107"),
        ("#define X (__GLIBCXX__ < 20150716)", ""),
    ],
)
def test_the_macros_say_it(tmp_path, defines, found) -> None:
    assert standard_library(script(tmp_path, f"echo '{defines}'")) == found


def test_a_compiler_that_does_not_run_has_none(tmp_path) -> None:
    assert standard_library(str(tmp_path / "gone")) == ""
    assert standard_library(script(tmp_path, "exit 1")) == ""


def test_variables_that_change_where_headers_are_looked_for_are_not_inherited(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", "20991231")
    assert standard_library(script(tmp_path, 'echo "#define __GLIBCXX__ $CPLUS_INCLUDE_PATH"')) == ""
