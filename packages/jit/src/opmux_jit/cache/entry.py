"""One entry: machine code, its source, and a manifest with the checksums of both."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opmux_jit.cache import files
from opmux_jit.cache.keys import FORMAT, entry_key
from opmux_jit.compilers.source import Source

MANIFEST, CODE = "manifest.json", "code.bin"


class Damaged(ValueError):
    """An entry is not what was written; the message says how."""


@dataclass(frozen=True)
class Entry:
    """Verified machine code.

    Attributes:
        key: the entry's name.
        source: what it was made from.
        compiler: name and version.
        code: the cubin or code object.
        builds: how often the entry was built in its folder, this time included.
        seconds: how long compiling took.
        place: the folder that has the entry; None where it could not be kept.
    """

    key: str
    source: Source
    compiler: str
    code: bytes
    builds: int = 1
    seconds: float = 0.0
    place: Path | None = None


def write(folder: Path, entry: Entry) -> None:
    """Write an entry's files, the manifest last.

    Raises:
        OSError: where the system refuses it.
    """
    source = entry.source
    contents = {CODE: entry.code, f"source{source.suffix}": source.text.encode()}
    manifest = {
        "format": FORMAT,
        "key": entry.key,
        "name": source.name,
        "arch": source.arch,
        "flags": list(source.flags),
        "include_dirs": [str(place) for place in source.include_dirs],
        "headers": dict(source.headers),
        "abi": source.abi,
        "backend": source.backend,
        "op": source.op,
        "language": source.language,
        "compiler": entry.compiler,
        "builds": entry.builds,
        "seconds": round(entry.seconds, 3),
        "files": files.listed(contents),
    }
    for name, data in contents.items():
        files.write_file(folder / name, data)
    files.write_file(folder / MANIFEST, files.sealed(manifest))


def read(folder: Path, read_file: Callable[[Path], bytes] = Path.read_bytes) -> Entry:
    """Read an entry, verified.

    Args:
        folder: the entry's folder.
        read_file: reads each of its files; a bundle's verifies them against its index.

    Raises:
        FileNotFoundError: where there is none.
        Damaged: where it is not whole, was changed, or belongs under another key.
    """
    path = folder / MANIFEST
    if not folder.is_dir():
        raise FileNotFoundError(folder)
    try:
        stated = files.unsealed(read_file(path))
        return _entry(folder, stated, read_file)
    except OSError as error:
        raise Damaged(f"{MANIFEST} cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise Damaged(str(error)) from None
    except (KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{MANIFEST} lacks what an entry has ({error})") from None


def _entry(folder: Path, stated: dict[str, Any], read_file: Callable[[Path], bytes]) -> Entry:
    if stated["format"] != FORMAT:
        raise Damaged(f"its format is {stated['format']!r}, this package reads {FORMAT}")
    key, compiler = stated["key"], stated["compiler"]
    if key != folder.name or key != entry_key(key.partition("-")[0], compiler):
        raise Damaged(f"it is the entry of another key, {key}")
    code = files.checked(folder / CODE, stated["files"][CODE], read_file)
    (named,) = (name for name in stated["files"] if name.startswith("source."))
    text = files.checked(folder / named, stated["files"][named], read_file)
    source = Source(
        stated["name"], text.decode(), stated["arch"], tuple(stated["flags"]),
        tuple(Path(place) for place in stated["include_dirs"]), stated["headers"], stated["abi"],
        stated["backend"], stated["op"], stated.get("language", "c++"),
    )  # fmt: skip
    return Entry(key, source, compiler, code, stated["builds"], stated["seconds"], folder)
