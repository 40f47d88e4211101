"""Libraries are loaded only from a folder that nobody else can write to."""

import os
import stat
from pathlib import Path

import pytest

from opmux_emulator.hip import library
from opmux_emulator.native import build
from opmux_emulator.native.library import cache_folder, path_of_library, private_folder


def test_a_new_folder_is_its_owners_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = os.umask(0)
    try:
        folder = cache_folder()
    finally:
        os.umask(before)
    assert folder == tmp_path / "cache" / "opmux" / "emulator"
    assert [stat.S_IMODE(p.stat().st_mode) for p in (folder, folder.parent)] == [0o700, 0o700]


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_folder_that_others_can_write_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "digest", lambda library: "digest")
    monkeypatch.setattr(build, "SOURCES", tmp_path / "from-source")  # no wheel brought them
    folder = cache_folder()
    for known in (build.INTERPRETER, build.HIP):  # what somebody else has put there
        (folder / f"{build.digest(known)}-{known.name}").write_bytes(b"")
    folder.chmod(mode)
    message = (
        f"^opmux-emulator: its libraries cannot be kept: {folder} can be written by other users: chmod go-w {folder}$"
    )
    with pytest.raises(build.BuildError, match=message):
        path_of_library()
    with pytest.raises(build.BuildError, match=message):
        library()
    folder.chmod(mode & ~0o22)
    assert path_of_library().parent == folder


def test_a_folder_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = tmp_path.stat().st_uid
    real = Path.stat

    def stat_of(path: Path, **options: bool) -> os.stat_result:
        found = list(real(path, **options))
        found[stat.ST_UID] = owner + 7
        return os.stat_result(found)

    monkeypatch.setattr(Path, "stat", stat_of)
    with pytest.raises(
        build.BuildError, match=rf"belongs to another user \(uid {owner + 7}\): set XDG_CACHE_HOME to a"
    ):
        private_folder(tmp_path)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(build.BuildError, match=r"cannot be kept in .*/file/folder: (Not a directory|File exists)"):
        private_folder(tmp_path / "file" / "folder")
