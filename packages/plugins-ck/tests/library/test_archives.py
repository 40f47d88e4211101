"""Source archives: headers are unpacked once, and nothing is written elsewhere."""

import errno
import io
import os
import random
import tarfile
import zipfile
from pathlib import Path

import platformdirs
import pytest

from opmux_ck.library.archives import ArchiveError, unpacked
from opmux_ck.library.places import library_for

FILES = {
    "sources-1.2/CMakeLists.txt": b"set(version 1.2.0)\n",
    "sources-1.2/include/ck_tile/core.hpp": b"// core\n",
    "sources-1.2/include/ck_tile/ops/rmsnorm2d.hpp": b"// norm\n",
    "sources-1.2/include/ck_tile/ops/epilogue.hpp": b"// store\n",
    "sources-1.2/example/main.cpp": b"int main() {}\n",
    "sources-1.2/include/../../../escaped.hpp": b"// out\n",
    "elsewhere/include/other.hpp": b"// not CK's\n",
}


@pytest.fixture(autouse=True)
def user_cache(monkeypatch, tmp_path) -> Path:
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: tmp_path / "user" / name)
    return tmp_path / "user" / "opmux" / "ck"


def zipped(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def tarred(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        link = tarfile.TarInfo("sources-1.2/include/link.hpp")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    return path


@pytest.mark.parametrize(("make", "name"), [(zipped, "ck.whl"), (tarred, "ck.tar.gz")])
def test_its_headers_and_nothing_else(make, name, monkeypatch, tmp_path, user_cache) -> None:
    archive = make(tmp_path / name, FILES)
    monkeypatch.setenv("OPMUX_CK_DIR", str(archive))
    found = library_for("rms_norm")
    assert found.version == (1, 2, 0)
    folder = found.include.parent
    assert folder.parent == user_cache
    assert sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()) == [
        "CMakeLists.txt",
        "include/ck_tile/core.hpp",
        "include/ck_tile/ops/epilogue.hpp",
        "include/ck_tile/ops/rmsnorm2d.hpp",
    ]
    assert not list(tmp_path.rglob("escaped.hpp"))
    assert [p.name for p in user_cache.iterdir()] == [folder.name]


@pytest.mark.parametrize("mask", [0o022, 0o002])
def test_it_is_unpacked_once(tmp_path, mask) -> None:
    before = os.umask(mask)
    try:
        folder = unpacked(zipped(tmp_path / "ck.zip", FILES))
    finally:
        os.umask(before)
    marked = folder / "include/ck_tile/core.hpp"
    marked.write_text("// kept")
    assert unpacked(tmp_path / "ck.zip") == folder
    assert marked.read_text() == "// kept"


def test_one_of_something_else(tmp_path, user_cache) -> None:
    archive = zipped(tmp_path / "other.zip", {"readme": b"hello"})
    with pytest.raises(ArchiveError) as caught:
        unpacked(archive)
    assert str(caught.value) == (f"{archive} has no include/ck_tile/core.hpp: it does not hold Composable Kernel")
    assert not list(user_cache.iterdir())


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"plain text"])
def test_a_damaged_one(tmp_path, damage) -> None:
    archive = tarred(tmp_path / "ck.tar.gz", FILES)
    archive.write_bytes(damage(archive.read_bytes()))
    with pytest.raises(ArchiveError, match=r"ck\.tar\.gz cannot be unpacked: "):
        unpacked(archive)


@pytest.mark.parametrize(("name", "mode"), [("ck.tar.gz", "w:gz"), ("ck.tar.xz", "w:xz")])
def test_one_with_a_flipped_bit(tmp_path, name, mode) -> None:
    noise = random.Random(0).randbytes(50_000)
    archive = tmp_path / name
    with tarfile.open(archive, mode) as tar:
        for inner, data in {**FILES, "sources-1.2/include/noise.hpp": noise}.items():
            member = tarfile.TarInfo(inner)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    data = bytearray(archive.read_bytes())
    data[len(data) // 2] ^= 8
    archive.write_bytes(data)
    with pytest.raises(ArchiveError, match=r"cannot be unpacked: "):
        unpacked(archive)


def test_one_whose_members_are_odd(tmp_path) -> None:
    archive = tmp_path / "ck.tar"
    at_the_root = {name.removeprefix("sources-1.2/"): data for name, data in FILES.items()}
    with tarfile.open(archive, "w") as tar:
        for inner, data in {"./": b"x", **at_the_root}.items():
            member = tarfile.TarInfo(inner)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    assert (unpacked(archive) / "include/ck_tile/core.hpp").is_file()


def test_an_encrypted_one(tmp_path) -> None:
    archive = zipped(tmp_path / "ck.zip", FILES)
    data = bytearray(archive.read_bytes())
    for place in [i for i in range(len(data) - 4) if data[i : i + 4] == b"PK\x01\x02"]:
        data[place + 8] |= 1  # the flag of a member
    archive.write_bytes(data)
    with pytest.raises(ArchiveError, match=r"cannot be unpacked: .*encrypted"):
        unpacked(archive)


def test_a_disk_that_is_full(tmp_path, user_cache, monkeypatch) -> None:
    """Half of the headers are never taken for all of them."""
    archive, real, count = zipped(tmp_path / "ck.zip", FILES), Path.write_bytes, 0

    def full(path: Path, data: bytes) -> int:
        nonlocal count
        count += 1
        if count > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ArchiveError, match=r"ck\.zip cannot be unpacked: .*No space left on device"):
        unpacked(archive)
    assert not list(user_cache.rglob("*.hpp"))
    monkeypatch.undo()


def test_a_cache_that_others_can_write_to(tmp_path, user_cache) -> None:
    user_cache.mkdir(parents=True)
    user_cache.chmod(0o777)
    with pytest.raises(ArchiveError, match=r"cannot be unpacked: .* can be written by other users: chmod go-w "):
        unpacked(zipped(tmp_path / "ck.zip", FILES))
