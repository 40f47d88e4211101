"""Bundles: read-only folders of machine code, built ahead, that can be moved and copied.

``bundle.json`` states the format, the archs, and the checksum and size of every file. The files are
entries of this cache, under ``entries``, and what backends keep in caches of their own, under a folder of their name.
"""

import errno
import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from opmux_jit.__about__ import __version__
from opmux_jit.cache import entry as entries
from opmux_jit.cache import files
from opmux_jit.cache.entry import Damaged, Entry
from opmux_jit.cache.reports import warn_once
from opmux_jit.errors import CacheRefused

FORMAT = 1
INDEX, ENTRIES = "bundle.json", "entries"
VARIABLE = "OPMUX_BUNDLES"


class Bundle:
    """A bundle that may be read.

    Attributes:
        root: its folder.
        archs: what its machine code is for.
        made_with: names and versions of what built it.
    """

    def __init__(self, root: Path) -> None:
        """Read the index.

        Raises:
            CacheRefused: where the folder is no bundle, of another format, damaged, or writable by others.
        """
        self.root = root
        reason = files.writable_by_others(root)
        if reason is not None:
            raise CacheRefused(f"bundle: {root} is not used: {reason}")
        try:
            stated = files.unsealed(files.read_trusted(root, INDEX))
            if stated["format"] != FORMAT:
                raise CacheRefused(
                    f"bundle: {root} is not used: its format is {stated['format']!r}, opmux-jit {__version__} reads "
                    f"{FORMAT}; build it again with `opmux prebuild`"
                )
            self.archs = tuple(stated["archs"])
            self.made_with: Mapping[str, str] = dict(stated["made_with"])
            self._files: Mapping[str, Any] = stated["files"]
            for name in self._files:
                if name.startswith("/") or ".." in name.split("/"):
                    raise ValueError(f"{name!r} leads out of the bundle")
        except OSError as error:
            raise CacheRefused(f"bundle: {root} is not used: {INDEX} cannot be read ({error.strerror})") from None
        except files.Untrusted as fault:
            raise CacheRefused(f"bundle: {root} is not used: {fault}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise CacheRefused(f"bundle: {root} is not used: {INDEX} is damaged ({error})") from None

    @property
    def label(self) -> str:
        """Its folder, archs and what made it, as messages show them: kernels of another version are not found."""
        made = ", ".join(f"{name} {version}" for name, version in sorted(self.made_with.items()))
        return f"{self.root} ({'; '.join(filter(None, (', '.join(self.archs), made)))})"

    def names(self, folder: str) -> list[str]:
        """The files under a folder of the bundle, by their paths in the bundle."""
        return [name for name in self._files if name.startswith(f"{folder}/")]

    def read(self, name: str) -> bytes:
        """A file of the bundle, verified.

        Raises:
            FileNotFoundError: where the bundle has no such file.
            Damaged: where it is not what was built, or others can write to it or its folder.
        """
        if name not in self._files:
            raise FileNotFoundError(errno.ENOENT, f"the bundle's {INDEX} does not state it", name)
        try:
            return files.checked(self.root / name, self._files[name], lambda _: files.read_trusted(self.root, name))
        except ValueError as error:
            raise Damaged(str(error)) from None

    def _read_at(self, path: Path) -> bytes:
        return self.read(path.relative_to(self.root).as_posix())

    def find(self, source_key: str) -> Entry | None:
        """The entry of a source's key, verified, by whatever compiler; one that is damaged is reported."""
        return next(self._whole(f"{source_key}-"), None)

    def entries(self) -> Iterator[Entry]:
        """Every entry, verified; one that is damaged is reported."""
        return self._whole("")

    def _whole(self, start: str) -> Iterator[Entry]:
        for name in self.names(ENTRIES):
            folder = Path(name).parent
            if Path(name).name == entries.MANIFEST and folder.name.startswith(start):
                try:
                    yield entries.read(self.root / folder, self._read_at)
                except (Damaged, FileNotFoundError) as damage:
                    place = self.root / folder
                    warn_once((place, str(damage)), "bundle entry %s is damaged, and is not used: %s", place, damage)

    def damages(self) -> Iterator[str]:
        """What is wrong with the files, a line each."""
        for name in self._files:
            try:
                self.read(name)
            except Damaged as damage:
                yield f"{self.root / name}: {damage}"


def write(root: Path, archs: Iterable[str], made_with: Mapping[str, str]) -> None:
    """Write the index over everything that a folder has, which makes a bundle of it.

    Raises:
        OSError: where the system refuses it.
    """
    contents = {p.relative_to(root).as_posix(): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}
    contents.pop(INDEX, None)
    index = {
        "format": FORMAT, "archs": sorted(set(archs)), "made_with": dict(made_with), "files": files.listed(contents),
    }  # fmt: skip
    temporary = root / f".{INDEX}.{os.getpid()}"
    files.write_file(temporary, files.sealed(index))
    for path in (root, *root.rglob("*")):  # whatever the umask is: others may read and not write
        path.chmod(0o755 if path.is_dir() else 0o644)
    temporary.rename(root / INDEX)


def layers() -> tuple[Bundle, ...]:
    """The bundles that ``OPMUX_BUNDLES`` names, in order; one that is refused is reported once."""
    return layers_of(os.environ.get(VARIABLE, ""))


def refusals() -> Iterator[str]:
    """Why a bundle that is named is not used."""
    for place in _places(os.environ.get(VARIABLE, "")):
        try:
            Bundle(place)
        except CacheRefused as refusal:
            yield str(refusal)


def _places(named: str) -> list[Path]:
    return [Path(part).expanduser() for part in named.split(os.pathsep) if part.strip()]


@functools.lru_cache(maxsize=4)
def layers_of(named: str) -> tuple[Bundle, ...]:
    """The bundles in a list of folders; read once."""
    found = []
    for place in _places(named):
        try:
            found.append(Bundle(place))
        except CacheRefused as refusal:
            warn_once((place, str(refusal)), "%s", refusal)
    return tuple(found)
