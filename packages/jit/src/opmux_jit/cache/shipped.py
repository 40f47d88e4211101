"""Machine code that a package ships in its wheel: the lowest layer, below bundles.

A folder has an index and, for each arch, compressed files of parts. A part is what is read together: the code of one
op's kernels follows one after the other in it. Sources are not repeated there: the key of its source finds a kernel.
"""

import functools
import lzma
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from opmux_jit.cache import files
from opmux_jit.cache.entry import Damaged, Entry
from opmux_jit.cache.keys import entry_key
from opmux_jit.cache.reports import warn_once
from opmux_jit.compilers.source import Source

FORMAT = 1
INDEX = "shipped.json"

_folders: dict[Path, "Shipped | None"] = {}


class Shipped:
    """What one package ships.

    Attributes:
        root: the folder.
        archs: what its machine code is for.
        compiler: name and version of what made it.
    """

    def __init__(self, root: Path) -> None:
        """Read the index.

        Raises:
            Damaged: where it is not whole or of another format.
        """
        self.root = root
        try:
            stated = files.unsealed((root / INDEX).read_bytes())
            if stated["format"] != FORMAT:
                raise Damaged(f"{root / INDEX}: its format is {stated['format']!r}, this package reads {FORMAT}")
            self.archs = tuple(stated["archs"])
            self.compiler = str(stated["compiler"])
            self._kernels: Mapping[str, tuple[str, int, int]] = {k: tuple(v) for k, v in stated["kernels"].items()}
            self._parts: Mapping[str, Any] = stated["parts"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise error if isinstance(error, Damaged) else Damaged(f"{root / INDEX} is damaged ({error})") from None

    @property
    def label(self) -> str:
        """Its folder, archs and compiler, as messages show them."""
        return f"{self.root} ({', '.join(self.archs)}, {self.compiler})"

    def keys(self) -> set[str]:
        """The keys of the sources that it has the code of."""
        return set(self._kernels)

    def code(self, key: str) -> bytes | None:
        """The machine code of a source's key, verified.

        Raises:
            Damaged: where the file that should have it is not what was shipped.
        """
        place = self._kernels.get(key)
        if place is None:
            return None
        part, offset, size = place
        return _part(self.root / part, str(self._parts[part]["sha256"]))[offset : offset + size]


@functools.lru_cache(maxsize=8)
def _part(path: Path, sha256: str) -> bytes:
    """The code in a part; kept, as the other kernels of an op are asked for soon."""
    try:
        packed = path.read_bytes()
    except OSError as error:
        raise Damaged(f"{path} cannot be read ({error.strerror})") from None
    if files.digest(packed) != sha256:
        raise Damaged(f"{path} is not what was shipped")
    return lzma.decompress(packed)


def add(folder: Path) -> None:
    """Let machine code be found in a package's folder; nothing is read before a kernel is looked for."""
    _folders.setdefault(folder, None)


def everything() -> Iterator[Shipped]:
    """What packages of this process ship; a folder without an index is that of a tree, which ships nothing."""
    for folder, known in list(_folders.items()):
        found = known
        if found is None and (folder / INDEX).exists():
            try:
                found = _folders[folder] = Shipped(folder)
            except Damaged as damage:
                warn_once((folder, str(damage)), "shipped machine code is not used: %s", damage)
        if found is not None:
            yield found


def find(source: Source, key: str) -> Entry | None:
    """The machine code of a source that a package ships; a damaged file is reported."""
    for shipped in everything():
        try:
            code = shipped.code(key)
        except Damaged as damage:
            warn_once((shipped.root, str(damage)), "shipped machine code is not used: %s", damage)
            continue
        if code is not None:
            return Entry(entry_key(key, shipped.compiler), source, shipped.compiler, code, place=shipped.root)
    return None


def write(folder: Path, entries: Iterable[Entry]) -> None:
    """Write the machine code of entries, all by one compiler, to a folder, a file for each arch and op.

    Raises:
        ValueError: where compilers differ.
        OSError: where the system refuses it.
    """
    parts: dict[str, list[Entry]] = {}
    for entry in entries:
        parts.setdefault(f"{entry.source.arch}/{entry.source.op or entry.source.name}.xz", []).append(entry)
    compilers = {entry.compiler for some in parts.values() for entry in some}
    if len(compilers) > 1:
        raise ValueError(f"one compiler expected, got {', '.join(sorted(compilers))}")
    kernels: dict[str, tuple[str, int, int]] = {}
    contents = {}
    for name, some in sorted(parts.items()):
        joined = b""
        for entry in sorted(some, key=lambda entry: entry.key):
            kernels[entry.key.partition("-")[0]] = name, len(joined), len(entry.code)
            joined += entry.code
        contents[name] = lzma.compress(joined, preset=9 | lzma.PRESET_EXTREME)
    for name, data in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    index = {
        "format": FORMAT,
        "archs": sorted({name.partition("/")[0] for name in parts}),
        "compiler": next(iter(compilers), ""),
        "parts": files.listed(contents),
        "kernels": kernels,
    }
    (folder / INDEX).write_bytes(files.sealed(index))
