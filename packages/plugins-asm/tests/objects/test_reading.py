"""Code objects are what the manifest of the wheel states, or one clear error says how they are not."""

import json
import shutil
from pathlib import Path

import pytest

from opmux.plugin import BuildFailed
from opmux_asm.kernels import ARCHS
from opmux_asm.objects import build, families, reading, toolchain


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    build.build(folder)
    return folder


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "built"))


@pytest.mark.long
def test_every_code_object_has_its_source_and_its_checksums(built: Path) -> None:
    manifest = json.loads((built / build.MANIFEST).read_text())
    assert manifest["toolchain"] == "ziglang 0.17.0"
    stated = manifest["objects"]
    assert set(stated) == {f"{arch}/{family}.hsaco" for arch in ARCHS for family in families.FAMILIES}
    files = {str(path.relative_to(built)) for path in built.rglob("*.*")}
    assert files == {build.MANIFEST, *stated, *(name.replace(".hsaco", ".s") for name in stated)}
    for name, facts in stated.items():
        source = built / name.replace(".hsaco", ".s")
        assert facts["source"] == build.listed(source.read_bytes())
        code = reading.from_wheel(built, Path(name).stem, Path(name).parent.name)
        assert build.listed(code.code) == {"sha256": facts["sha256"], "bytes": facts["bytes"]}
        assert code.kernels == facts["kernels"]


def test_a_code_object_is_what_its_source_assembles_to(built: Path) -> None:
    source = (built / "gfx942/rms_norm.s").read_text()
    assert toolchain.assemble(source, "gfx942", "rms_norm") == (built / "gfx942/rms_norm.hsaco").read_bytes()


def truncate(folder: Path, name: str) -> str:
    path = folder / name
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:1000])
    return f"rms_norm.hsaco has 1000 bytes, {size} were written"


def change(folder: Path, name: str) -> str:
    data = bytearray((folder / name).read_bytes())
    data[2000] ^= 1
    (folder / name).write_bytes(data)
    return "rms_norm.hsaco: its checksum does not match"


def remove(folder: Path, name: str) -> str:
    (folder / name).unlink()
    return "rms_norm.hsaco cannot be read (No such file or directory)"


def forget(folder: Path, name: str) -> str:
    path = folder / build.MANIFEST
    manifest = json.loads(path.read_text())
    del manifest["objects"][name]
    path.write_text(json.dumps(manifest))
    return f"the manifest has no '{name}'"


def garble(folder: Path, name: str) -> str:
    (folder / build.MANIFEST).write_text("[]")
    return "list indices must be integers or slices, not str"


@pytest.mark.parametrize("damage", [truncate, change, remove, forget, garble])
def test_a_wheel_that_is_not_what_its_manifest_states(copy: Path, damage: object) -> None:
    name = "gfx942/rms_norm.hsaco"
    reason = damage(copy, name)  # type: ignore[operator]
    with pytest.raises(BuildFailed) as caught:
        reading.from_wheel(copy, "rms_norm", "gfx942")
    assert str(caught.value) == (
        f"asm: {name} is not what the wheel's manifest states: {reason}\n"
        f"  folder:    {copy}\n"
        "  try:       pip install --force-reinstall --no-deps opmux-asm"
    )


def test_a_tree_without_an_assembler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(reading, "FOLDER", reading.FOLDER.with_name("not-built"))
    monkeypatch.setattr(toolchain, "version", lambda: "")
    monkeypatch.setattr(reading.platformdirs, "user_cache_path", lambda name: tmp_path)
    reading.code_object.cache_clear()
    with pytest.raises(BuildFailed) as caught:
        reading.code_object("rms_norm", "gfx942")
    assert str(caught.value) == (
        "asm: rms_norm for gfx942 is not assembled, and there is no assembler: "
        'install a wheel of opmux-asm, or pip install "opmux-asm[toolchain]"'
    )


def test_a_source_that_the_assembler_refuses() -> None:
    with pytest.raises(toolchain.ToolchainError, match=r"^asm: clang refused bad for gfx942:\n(.|\n)*invalid instr"):
        toolchain.assemble("v_nonsense v0\n", "gfx942", "bad")


def test_what_was_assembled_is_kept_and_a_damaged_one_made_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(reading.platformdirs, "user_cache_path", lambda name: tmp_path)
    first = reading.assembled("rms_norm", "gfx950")
    (kept,) = (tmp_path / "asm").glob("*.hsaco")
    monkeypatch.setattr(toolchain, "assemble", lambda *_: b"made again")
    assert reading.assembled("rms_norm", "gfx950") == first
    kept.write_bytes(first.code[:-1])
    assert reading.assembled("rms_norm", "gfx950").code == b"made again"
