"""Files that appear whole or not at all, and folders that nobody else can write to."""

import hashlib
import json
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

PRIVATE = 0o700
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class Untrusted(ValueError):
    """Somebody else can write to a file or its folder, or owns it; the message says how."""


def make_folder(path: Path) -> None:
    """Make a folder and its parents; those that are made can be written by their owner only.

    Raises:
        OSError: where the system refuses it.
    """
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(mode=PRIVATE, exist_ok=True)


def writable_by_others(path: Path) -> str | None:
    """Why a folder's contents cannot be trusted, or None. A folder that does not exist is not at fault."""
    try:
        state = path.stat()
    except OSError:
        return None
    return _fault(path, state)


def _fault(path: Path, state: os.stat_result) -> str | None:
    if state.st_uid not in (os.geteuid(), 0):
        return f"{path} belongs to another user (uid {state.st_uid})"
    if state.st_mode & _OTHERS and not state.st_mode & stat.S_ISVTX:
        return f"{path} can be written by other users: chmod go-w {path}"
    if state.st_mode & _OTHERS:
        return f"{path} can be written by other users: choose a folder of your own"
    return None


def read_trusted(root: Path, name: str) -> bytes:
    """The contents of a file below a folder, if nobody else can write to it or to the folders between.

    Raises:
        OSError: where it cannot be read.
        Untrusted: where another user can write to it, or to a folder between.
    """
    for folder in reversed(PurePosixPath(name).parents[:-1]):
        _check(root / folder, (root / folder).stat())
    with (root / name).open("rb") as file:
        _check(root / name, os.fstat(file.fileno()))
        return file.read()


def _check(path: Path, state: os.stat_result) -> None:
    fault = _fault(path, state)
    if fault is not None:
        raise Untrusted(fault)


def digest(data: bytes) -> str:
    """The checksum of a file's contents."""
    return hashlib.sha256(data).hexdigest()


def write_file(path: Path, data: bytes) -> None:
    """Write a new file and have the system put it on disk.

    Raises:
        OSError: where it cannot be written whole.
    """
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sealed(content: Mapping[str, Any]) -> bytes:
    """JSON of an object with a checksum of itself."""
    return json.dumps({**content, "checksum": _checksum(content)}, indent=1, sort_keys=True).encode()


def unsealed(data: bytes) -> dict[str, Any]:
    """The object of a sealed JSON text.

    Raises:
        ValueError: where the text is not what was sealed; the message says how.
    """
    try:
        content = json.loads(data)
    except ValueError:
        raise ValueError("not JSON") from None
    if not isinstance(content, dict):
        raise ValueError("not an object")
    stated = content.pop("checksum", None)
    if stated != _checksum(content):
        raise ValueError("its own checksum does not match")
    return content


def _checksum(content: Mapping[str, Any]) -> str:
    return digest(json.dumps(content, sort_keys=True).encode())


def listed(files: Mapping[str, bytes]) -> dict[str, dict[str, Any]]:
    """Name -> checksum and size, as manifests state them."""
    return {name: {"sha256": digest(data), "bytes": len(data)} for name, data in files.items()}


def checked(path: Path, stated: Any, read: Callable[[Path], bytes] = Path.read_bytes) -> bytes:
    """A file's contents, if they are what a manifest states.

    Args:
        path: the file.
        stated: its checksum and size.
        read: reads it.

    Raises:
        ValueError: where they are not, or cannot be read.
    """
    try:
        data = read(path)
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read ({error.strerror})") from None
    if len(data) != stated["bytes"]:
        raise ValueError(f"{path.name} has {len(data)} bytes, {stated['bytes']} were written")
    if digest(data) != stated["sha256"]:
        raise ValueError(f"{path.name}: its checksum does not match")
    return data
