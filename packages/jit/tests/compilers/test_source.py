"""A source says what is compiled, and refuses what the cache could not see."""

from pathlib import Path

import pytest
from kernels import add

from opmux.plugin import InvalidArgument
from opmux_jit import Source
from opmux_jit.cache.keys import source_key

WRONG = [
    ({"name": "a/b"}, "Source: `name` expected letters, digits, '_', '.' and '-', got 'a/b'; rename the source"),
    ({"name": ""}, "Source: `name` expected letters, digits, '_', '.' and '-', got ''; rename the source"),
    (
        {"arch": "hopper"},
        "Source: `arch` expected an arch of NVIDIA's or AMD's compilers, got 'hopper'; write it as sm_90, sm_90a or "
        "gfx942",
    ),
    *(
        (
            {"headers": {header: ""}},
            f"Source: `headers` expected relative names without '..', got {header!r}; name it as `#include` does",
        )
        for header in ("../../x", "deep/../../x.h", "/etc/x.h", "")
    ),
    *(
        (
            {"flags": (flag,)},
            f"Source: `flags` expected no headers or folders of headers, got {flag!r}; name them in `include_dirs` or "
            "`headers`, so that the cache sees their contents",
        )
        for flag in ("-I/opt/include", "-include=x.h", "--include-path=/opt", "--pre-include=x.h")
    ),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_what_is_wrong_with_a_source_is_said(change, message) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Source(**{"name": "add", "text": "", "arch": "sm_90", **change})
    assert str(caught.value) == message


def test_everything_that_decides_the_machine_code_is_in_the_key() -> None:
    keys = {
        source_key(source)
        for source in (
            add(),
            add("other"),
            add(arch="sm_90a"),
            add(flags=("-G",)),
            add(flags=("-G", "-lineinfo")),
            add(flags=("-G -lineinfo",)),
            add(abi=2),
            Source("add", "", "sm_90"),
        )
    }
    assert len(keys) == 8
    assert source_key(add()) == source_key(add(backend="ck", op="linear"))


def test_a_changed_header_changes_the_key_and_its_folder_does_not(tmp_path: Path) -> None:
    def key_with(folder: str, deep: str) -> str:
        place = tmp_path / folder / "include"
        (place / "parts").mkdir(parents=True)
        (place / "parts" / "deep.h").write_text(deep)
        (place / "parts" / "near.h").write_text('#include "deep.h"\n')
        (place / "unused.h").write_text(folder)
        text = "#include <vector>\n#  include <parts/near.h>\n"
        return source_key(Source("k", text, "sm_90", include_dirs=(place,)))

    assert key_with("one", "1") == key_with("two", "1")
    assert key_with("three", "3") != key_with("four", "1")


def test_headers_in_memory_are_in_the_key() -> None:
    with_header = [
        source_key(Source("k", '#include "a.h"\n', "sm_90", headers={"a.h": '#include "b.h"', "b.h": deep}))
        for deep in ("1", "2")
    ]
    assert len(set(with_header)) == 2


def test_where_an_include_is_computed_every_header_counts(tmp_path: Path) -> None:
    def key() -> str:
        return source_key(Source("k", "#include HEADER\n", "sm_90", include_dirs=(tmp_path,)))

    (tmp_path / "some.h").write_text("1")
    first = key()
    (tmp_path / "some.h").write_text("2")
    assert key() != first


def test_folders_of_headers_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert add(include_dirs=(Path("include"),)).include_dirs == (tmp_path / "include",)
