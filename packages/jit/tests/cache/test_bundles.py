"""Bundles: read-only layers that are verified file by file."""

import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from kernels import Counting, add

from opmux_jit import CacheRefused, KernelMissing, kept, kept_without_headers, machine_code
from opmux_jit.cache import bundles, files, layers
from opmux_jit.cache.entry import Damaged
from opmux_jit.compilers import choice


@pytest.fixture
def compiler(monkeypatch) -> Counting:
    made = Counting()
    monkeypatch.setattr(choice, "find", lambda name: made if name == made.name else None)
    return made


@pytest.fixture
def bundle(compiler, tmp_path, cache) -> Path:
    """A bundle with one entry, moved away from where it was made; the cache is empty again."""
    place = machine_code(add()).place
    assert place is not None
    made = tmp_path / "made"
    shutil.copytree(place, made / "entries" / place.parent.name / place.name)
    (made / "triton").mkdir()
    (made / "triton" / "kernel.cubin").write_bytes(b"machine code")
    bundles.write(made, ["sm_90"], {"opmux-jit": "0.1.0", "nvrtc": "13.5"})
    shutil.rmtree(cache)
    layers.forget()
    moved = tmp_path / "moved" / "bundle"
    moved.parent.mkdir()
    return made.rename(moved)


def test_a_bundle_serves_where_the_cache_has_nothing(bundle, compiler, monkeypatch, cache) -> None:
    monkeypatch.setenv("OPMUX_BUNDLES", f"/no/such/folder:{bundle}")
    compiler.version = "14.0"  # not the one that built it
    found = machine_code(add())
    assert found.place is not None
    assert found.place.is_relative_to(bundle)
    assert compiler.count == 1
    assert not cache.exists()


def test_it_serves_where_compiling_is_forbidden_and_errors_name_it(bundle, monkeypatch) -> None:
    monkeypatch.setenv("OPMUX_BUNDLES", str(bundle))
    monkeypatch.setenv("OPMUX_NO_JIT", "1")
    assert machine_code(add()).compiler == "nvrtc 13.5"
    with pytest.raises(KernelMissing) as caught:
        machine_code(add(arch="gfx942"))
    assert str(caught.value).splitlines()[2] == f"  bundles: {bundle} (sm_90; nvrtc 13.5, opmux-jit 0.1.0)"


def test_other_files_are_read_by_name_and_verified(bundle) -> None:
    opened = bundles.Bundle(bundle)
    assert (opened.archs, opened.made_with) == (("sm_90",), {"opmux-jit": "0.1.0", "nvrtc": "13.5"})
    assert opened.names("triton") == ["triton/kernel.cubin"]
    assert opened.read("triton/kernel.cubin") == b"machine code"
    (bundle / "triton/kernel.cubin").write_bytes(b"machine c0de")
    with pytest.raises(ValueError, match=r"^kernel.cubin: its checksum does not match$"):
        opened.read("triton/kernel.cubin")
    (bundle / "triton/added").write_bytes(b"by somebody else")
    with pytest.raises(FileNotFoundError):
        opened.read("triton/added")


@pytest.mark.parametrize("name", ["code.bin", "manifest.json", "source.cu"])
def test_a_damaged_entry_is_reported_and_compiled_instead(bundle, compiler, monkeypatch, caplog, name) -> None:
    monkeypatch.setenv("OPMUX_BUNDLES", str(bundle))
    (path,) = bundle.rglob(name)
    path.write_bytes(path.read_bytes()[1:])
    assert machine_code(add()).compiler == "nvrtc 13.5"
    assert compiler.count == 2
    (said,) = [r.getMessage() for r in caplog.records]
    assert said.startswith(f"bundle entry {path.parent} is damaged, and is not used: {name} has ")
    assert len(list(bundles.Bundle(bundle).damages())) == 1


def test_an_entry_that_the_index_does_not_state_is_not_read(bundle, compiler, monkeypatch) -> None:
    """Even a whole entry, planted with a manifest of its own."""
    place = machine_code(add("other")).place
    assert place is not None
    shutil.copytree(place, bundle / "entries" / place.parent.name / place.name)
    opened = bundles.Bundle(bundle)
    assert opened.find(place.name.partition("-")[0]) is None


def index_of(bundle: Path, **change: object) -> None:
    path = bundle / "bundle.json"
    path.write_bytes(files.sealed({**files.unsealed(path.read_bytes()), **change}))


REFUSED = {
    "other format": (
        lambda b: index_of(b, format=2),
        "its format is 2, opmux-jit 0.1.0 reads 1; build it again with `opmux prebuild`",
    ),
    "no index": (lambda b: (b / "bundle.json").unlink(), "bundle.json cannot be read (No such file or directory)"),
    "cut index": (lambda b: (b / "bundle.json").write_bytes(b"{"), "bundle.json is damaged (not JSON)"),
    "no files": (
        lambda b: (b / "bundle.json").write_bytes(files.sealed({"format": 1, "archs": [], "made_with": {}})),
        "bundle.json is damaged ('files')",
    ),
    "writable": (lambda b: b.chmod(0o777), "{bundle} can be written by other users: chmod go-w {bundle}"),
    "writable index": (
        lambda b: (b / "bundle.json").chmod(0o664),
        "{bundle}/bundle.json can be written by other users: chmod go-w {bundle}/bundle.json",
    ),
    "versions that are none": (
        lambda b: index_of(b, made_with=7),
        "bundle.json is damaged ('int' object is not iterable)",
    ),
    "a name that leads out": (
        lambda b: index_of(b, files={"entries/../../x": {"sha256": "0", "bytes": 1}}),
        "bundle.json is damaged ('entries/../../x' leads out of the bundle)",
    ),
    "an absolute name": (
        lambda b: index_of(b, files={"/etc/passwd": {"sha256": "0", "bytes": 1}}),
        "bundle.json is damaged ('/etc/passwd' leads out of the bundle)",
    ),
}


@pytest.mark.parametrize("how", REFUSED)
def test_a_bundle_that_cannot_be_used_is_reported_once(bundle, compiler, monkeypatch, caplog, how) -> None:
    change, reason = REFUSED[how]
    change(bundle)
    monkeypatch.setenv("OPMUX_BUNDLES", str(bundle))
    message = f"bundle: {bundle} is not used: {reason.format(bundle=bundle)}"
    with pytest.raises(CacheRefused) as caught:
        bundles.Bundle(bundle)
    assert str(caught.value) == message
    assert list(bundles.refusals()) == [message]
    machine_code(add())
    machine_code(add("other"))
    assert compiler.count == 3
    assert [r.getMessage() for r in caplog.records] == [message]
    monkeypatch.setenv("OPMUX_NO_JIT", "1")
    with pytest.raises(KernelMissing) as missing:
        machine_code(add("another"))
    assert str(missing.value).splitlines()[2] == f"  bundles: {message.removeprefix('bundle: ')}"


def test_a_bundle_for_another_arch_is_passed_over(bundle, compiler, monkeypatch, cache) -> None:
    monkeypatch.setenv("OPMUX_BUNDLES", str(bundle))
    found = machine_code(add(arch="sm_80"))
    assert found.place is not None
    assert found.place.is_relative_to(cache)


def test_what_is_written_can_be_written_by_its_owner_only(tmp_path) -> None:
    before = os.umask(0)
    try:
        (tmp_path / "made/triton/deep").mkdir(parents=True)
        (tmp_path / "made/triton/deep/kernel.cubin").write_bytes(b"machine code")
        bundles.write(tmp_path / "made", ["sm_90"], {})
    finally:
        os.umask(before)
    made = tmp_path / "made"
    modes = {p.relative_to(made).as_posix(): stat.S_IMODE(p.stat().st_mode) for p in (made, *made.rglob("*"))}
    assert modes == {
        ".": 0o755, "bundle.json": 0o644, "triton": 0o755, "triton/deep": 0o755, "triton/deep/kernel.cubin": 0o644,
    }  # fmt: skip
    assert bundles.Bundle(made).read("triton/deep/kernel.cubin") == b"machine code"


@pytest.mark.parametrize("name", ["triton", "triton/kernel.cubin"])
def test_a_file_that_others_can_write_to_is_not_read(bundle, name) -> None:
    opened = bundles.Bundle(bundle)
    (bundle / name).chmod(0o777)
    with pytest.raises(Damaged) as caught:
        opened.read("triton/kernel.cubin")
    said = f"{bundle / name} can be written by other users: chmod go-w {bundle / name}"
    assert str(caught.value) == said
    assert list(opened.damages()) == [f"{bundle}/triton/kernel.cubin: {said}"]


@pytest.mark.parametrize("name", ["code.bin", "manifest.json", "source.cu"])
def test_an_entry_that_others_can_write_to_is_compiled_instead(bundle, compiler, monkeypatch, caplog, name) -> None:
    monkeypatch.setenv("OPMUX_BUNDLES", str(bundle))
    (path,) = bundle.rglob(name)
    path.chmod(0o666)
    machine_code(add())
    assert compiler.count == 2
    said = f"{path} can be written by other users: chmod go-w {path}"
    assert [r.getMessage() for r in caplog.records] == [
        f"bundle entry {path.parent} is damaged, and is not used: {said}"
    ]


def test_code_is_held_to_the_index_and_not_only_to_its_manifest(bundle, compiler, monkeypatch, caplog) -> None:
    """Code that the index states otherwise, though the entry's own manifest agrees with it."""
    stated = files.unsealed((bundle / "bundle.json").read_bytes())["files"]
    (name,) = (n for n in stated if n.endswith("code.bin"))
    index_of(bundle, files={**stated, name: {**stated[name], "sha256": "0" * 64}})
    monkeypatch.setenv("OPMUX_BUNDLES", str(bundle))
    machine_code(add())
    assert compiler.count == 2
    place = (bundle / name).parent
    said = f"bundle entry {place} is damaged, and is not used: code.bin: its checksum does not match"
    assert [r.getMessage() for r in caplog.records] == [said]


def test_code_that_the_index_lacks_is_not_used(bundle, monkeypatch, caplog) -> None:
    stated = files.unsealed((bundle / "bundle.json").read_bytes())["files"]
    index_of(bundle, files={n: state for n, state in stated.items() if not n.endswith("code.bin")})
    monkeypatch.setenv("OPMUX_BUNDLES", str(bundle))
    machine_code(add())
    (said,) = [r.getMessage() for r in caplog.records]
    assert said.endswith(": code.bin cannot be read (the bundle's bundle.json does not state it)")


def test_what_is_kept_needs_no_compiler(bundle, monkeypatch, cache) -> None:
    monkeypatch.setenv("OPMUX_BUNDLES", str(bundle))
    found = kept(add())
    assert found is not None
    assert found.place is not None
    assert found.place.is_relative_to(bundle)
    machine_code(add("other"))
    assert (kept(add("other")).place or cache).is_relative_to(cache)
    assert kept(add("neither")) is None


def test_what_is_kept_is_found_without_the_headers_of_its_key(bundle, monkeypatch) -> None:
    monkeypatch.setenv("OPMUX_BUNDLES", str(bundle))
    source = add()
    assert kept_without_headers(replace(source, flags=("-O1",))).source == source
    assert kept_without_headers(replace(source, text=source.text + "// changed")) is None
    assert kept_without_headers(replace(source, arch="sm_80")) is None
    assert kept_without_headers(replace(source, abi=7)) is None
    machine_code(add("other"))
    assert kept_without_headers(add("other")).source == add("other")
