"""Files that appear whole or not at all, and what is trusted."""

import json
import os
import stat
from pathlib import Path

import pytest

from opmux_jit.cache import files
from opmux_jit.cache.files import Untrusted, checked, listed, read_trusted, sealed, unsealed


def test_folders_that_are_made_are_private_and_those_that_were_there_keep_their_mode(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    there.chmod(0o755)
    files.make_folder(there / "a" / "b")
    files.make_folder(there / "a" / "b")
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (there, there / "a", there / "a" / "b")]
    assert modes == [0o755, 0o700, 0o700]


@pytest.mark.parametrize(
    ("mode", "advice"),
    [
        (0o775, "can be written by other users: chmod go-w {path}"),
        (0o757, "can be written by other users: chmod go-w {path}"),
        (0o1777, "can be written by other users: choose a folder of your own"),
        (0o755, None),
        (0o1755, None),
    ],
)
def test_who_can_write_to_a_folder(tmp_path: Path, mode: int, advice: str | None) -> None:
    path = tmp_path / "cache"
    path.mkdir()
    path.chmod(mode)
    assert files.writable_by_others(path) == (advice and f"{path} {advice.format(path=path)}")


def test_whose_a_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    expected = None if owner == 0 else f"{tmp_path} belongs to another user (uid {owner})"  # root's files are trusted
    assert files.writable_by_others(tmp_path) == expected
    assert files.writable_by_others(tmp_path / "none") is None


def test_a_file_is_read_only_if_nobody_else_can_write_to_it_or_above_it(tmp_path: Path) -> None:
    name = "ab/key/code.bin"
    files.make_folder(tmp_path / "ab" / "key")
    files.write_file(tmp_path / name, b"code")
    (tmp_path / name).chmod(0o644)
    assert read_trusted(tmp_path, name) == b"code"
    for place in (tmp_path / name, tmp_path / "ab" / "key", tmp_path / "ab"):
        before = stat.S_IMODE(place.stat().st_mode)
        place.chmod(before | stat.S_IWOTH)
        with pytest.raises(Untrusted) as refused:
            read_trusted(tmp_path, name)
        assert str(refused.value) == f"{place} can be written by other users: chmod go-w {place}"
        place.chmod(before)
    assert read_trusted(tmp_path, name) == b"code"
    with pytest.raises(FileNotFoundError):
        read_trusted(tmp_path, "ab/key/none")


def test_what_is_sealed_is_read_back_and_nothing_else() -> None:
    content = {"b": [1, {"c": None}], "a": "é"}
    data = sealed(content)
    assert unsealed(data) == content
    assert sealed(dict(reversed(content.items()))) == data  # whatever the order

    def told(changed: bytes) -> str:
        with pytest.raises(ValueError, match=r".") as refused:
            unsealed(changed)
        return str(refused.value)

    assert told(data[:-1]) == "not JSON"
    assert told(b"\xff") == "not JSON"
    assert told(b"[]") == "not an object"
    assert told(b"{}") == "its own checksum does not match"
    assert told(json.dumps({**json.loads(data), "a": "e"}).encode()) == "its own checksum does not match"
    assert told(json.dumps({**json.loads(data), "d": 0}).encode()) == "its own checksum does not match"


def test_a_file_is_what_its_manifest_states(tmp_path: Path) -> None:
    path = tmp_path / "code.bin"
    stated = listed({"code.bin": b"cubin"})["code.bin"]
    assert stated == {"sha256": files.digest(b"cubin"), "bytes": 5}

    def told() -> str:
        with pytest.raises(ValueError, match=r".") as refused:
            checked(path, stated)
        return str(refused.value)

    assert told() == "code.bin cannot be read (No such file or directory)"
    path.write_bytes(b"cubi")
    assert told() == "code.bin has 4 bytes, 5 were written"
    path.write_bytes(b"cubim")
    assert told() == "code.bin: its checksum does not match"
    path.write_bytes(b"cubin")
    assert checked(path, stated) == b"cubin"
    assert checked(path, stated, lambda _: b"cubin") == b"cubin"
