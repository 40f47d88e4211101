"""Machine code that packages ship: found below bundles, verified, and left out where it is damaged."""

import logging
from pathlib import Path

import pytest

from opmux_jit import KernelMissing, Source, add_shipped, kept, machine_code
from opmux_jit.cache import layers, shipped
from opmux_jit.cache.entry import Damaged, Entry
from opmux_jit.cache.keys import entry_key, source_key

SOURCES = [Source(name, f"// {name}", arch, (), op=op) for name, arch, op in (
    ("one", "sm_90", "rms_norm"), ("two", "sm_90", "rms_norm"), ("three", "sm_90", ""), ("one", "sm_100", "rms_norm"),
)]  # fmt: skip
COMPILER = "cutile 1.7.0"


def entry_of(source: Source, compiler: str = COMPILER) -> Entry:
    code = f"{source.name} for {source.arch}".encode()
    return Entry(entry_key(source_key(source), compiler), source, compiler, code)


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that ships four kernels, in a process that may not compile and has cached nothing."""
    layers.forget()
    monkeypatch.setattr(shipped, "_folders", {})
    monkeypatch.setenv("OPMUX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OPMUX_NO_JIT", "1")
    folder = tmp_path / "package" / "built"
    folder.mkdir(parents=True)
    shipped.write(folder, [entry_of(source) for source in SOURCES])
    add_shipped(folder)
    yield folder
    layers.forget()


def test_every_kernel_is_found_by_its_source(package: Path) -> None:
    for source in SOURCES:
        found = machine_code(source)
        assert (found.code, found.compiler) == (f"{source.name} for {source.arch}".encode(), COMPILER)
        assert kept(source) is not None
    (only,) = shipped.everything()
    assert (only.archs, only.keys()) == (("sm_100", "sm_90"), {source_key(source) for source in SOURCES})
    assert sorted(str(p.relative_to(package)) for p in package.rglob("*.xz")) == [
        "sm_100/rms_norm.xz", "sm_90/rms_norm.xz", "sm_90/three.xz",
    ]  # fmt: skip


def test_another_source_is_missing_and_the_error_says_what_there_is(package: Path) -> None:
    with pytest.raises(KernelMissing) as caught:
        machine_code(Source("one", "// changed", "sm_90", (), backend="cutile", op="rms_norm"))
    lines = str(caught.value).splitlines()
    assert lines[3] == f"  shipped:   {package} (sm_100, sm_90, {COMPILER})"
    assert lines[4].startswith("  try:       opmux prebuild --arch sm_90 --backend cutile --op rms_norm")


def test_a_package_without_machine_code_ships_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "_folders", {})
    add_shipped(tmp_path / "none")
    assert list(shipped.everything()) == []
    assert shipped.find(SOURCES[0], source_key(SOURCES[0])) is None


@pytest.mark.parametrize("how", ["changed", "gone", "index", "format"])
def test_what_is_damaged_is_reported_and_not_used(package: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    part, index = package / "sm_90" / "rms_norm.xz", package / shipped.INDEX
    if how == "gone":
        part.unlink()
    elif how == "changed":
        part.write_bytes(part.read_bytes()[:-1] + b"\0")
    elif how == "index":
        index.write_bytes(index.read_bytes().replace(b"sm_100", b"sm_101"))
    else:
        stated = shipped.files.unsealed(index.read_bytes())
        index.write_bytes(shipped.files.sealed({**stated, "format": 2}))
    shipped._part.cache_clear()
    with caplog.at_level(logging.WARNING), pytest.raises(KernelMissing):
        machine_code(SOURCES[0])
    said = {"changed": "is not what was shipped", "gone": "cannot be read", "index": "is damaged",
            "format": "its format is 2, this package reads 1"}[how]  # fmt: skip
    assert said in caplog.text
    if how in ("changed", "gone"):
        assert machine_code(SOURCES[2]).code == b"three for sm_90"


def test_one_compiler_made_everything(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one compiler expected, got a 1, b 2"):
        shipped.write(tmp_path, [entry_of(SOURCES[0], "a 1"), entry_of(SOURCES[1], "b 2")])


def test_a_folder_without_an_index_is_no_package(tmp_path: Path) -> None:
    with pytest.raises(Damaged, match=r"shipped\.json is damaged"):
        shipped.Shipped(tmp_path)
