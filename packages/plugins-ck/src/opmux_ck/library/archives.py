"""Source archives of Composable Kernel: its headers are unpacked once, into the user's cache."""

import hashlib
import lzma
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import platformdirs

from opmux_jit.cache import files

MARK = "include/ck_tile/core.hpp"
"""The file by which the root of CK is known in an archive."""


class ArchiveError(ValueError):
    """An archive is damaged, or does not hold Composable Kernel."""


def unpacked(archive: Path) -> Path:
    """The folder with the headers of an archive: ``.zip``, ``.whl`` or ``.tar`` in any compression.

    Raises:
        ArchiveError: it cannot be read, or has no Composable Kernel.
    """
    try:
        with archive.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
        folder = platformdirs.user_cache_path("opmux") / "ck" / digest
        refusal = files.writable_by_others(folder.parent) or files.writable_by_others(folder)
        if refusal is not None:
            raise ArchiveError(f"{archive} cannot be unpacked: {refusal}")
        if not folder.is_dir():
            _unpack(archive, folder)
    except (OSError, EOFError, RuntimeError, zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError) as error:
        raise ArchiveError(f"{archive} cannot be unpacked: {error}") from None
    return folder


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack the headers, so that the folder appears whole or not at all."""
    files.make_folder(folder.parent)
    with tempfile.TemporaryDirectory(dir=folder.parent) as private:
        whole = Path(private) / "whole"
        for name, data in _headers(archive):
            target = whole / name
            files.make_folder(target.parent)
            target.write_bytes(data)
        if not (whole / MARK).is_file():
            raise ArchiveError(f"{archive} has no {MARK}: it does not hold Composable Kernel")
        try:
            whole.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster
                raise


def _headers(archive: Path) -> Iterator[tuple[PurePosixPath, bytes]]:
    """The files below CK's ``include``, and the build file that states the version, by their path below CK's root.

    Links are left out, and so is every path that leaves the root: an archive writes nowhere else.
    """
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            names = [entry.filename for entry in opened.infolist() if not entry.is_dir()]
            for name, inner in _wanted(names):
                yield inner, opened.read(name)
        return
    with tarfile.open(archive) as tar:
        members = {member.name: member for member in tar.getmembers() if member.isfile()}
        for name, inner in _wanted(list(members)):
            file = tar.extractfile(members[name])
            if file is not None:
                yield inner, file.read()
        # To the end of the file, where a compression's checksum lies.
        while tar.fileobj is not None and tar.fileobj.read(1 << 20):
            pass


def _wanted(names: list[str]) -> Iterator[tuple[str, PurePosixPath]]:
    roots = [name.removesuffix(MARK) for name in names if name == MARK or name.endswith(f"/{MARK}")]
    if not roots:
        return
    root = min(roots, key=len)
    for name in names:
        inner = PurePosixPath(name.removeprefix(root)) if name.startswith(root) else None
        if inner is None or ".." in inner.parts or inner.is_absolute():
            continue
        if inner.parts[:1] == ("include",) or str(inner) == "CMakeLists.txt":
            yield name, inner
