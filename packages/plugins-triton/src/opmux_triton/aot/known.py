"""Known exceptions: complaints that are understood and accepted, each with its reason, in a TOML file.

Each table ``[[known]]`` has ``arch``, ``kernel`` (its name), ``flags`` (words that the row's flags contain),
``complaints`` (a list of the beginnings of complaints) and ``reason``; also ``triton``, the beginning of the versions
to which it applies, if not to all.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from opmux.plugin import InvalidArgument


@dataclass(frozen=True)
class Known:
    """One exception."""

    kernel: str
    flags: tuple[str, ...]
    complaints: tuple[str, ...]
    reason: str

    def covers(self, line: str) -> bool:
        """Whether a complaint (``kernel|config|flags: text``) is this one."""
        kernel = line.partition("|")[0]
        flags, _, text = line.rpartition("|")[2].partition(": ")
        held = set(self.flags) <= set(flags.split())
        return kernel == self.kernel and held and text.startswith(self.complaints)


def read(path: Path, arch: str, version: str) -> list[Known]:
    """The exceptions of an arch under a version of Triton.

    Raises:
        InvalidArgument: where the file is none of this kind.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))["known"]
        return [
            Known(t["kernel"], tuple(t["flags"].split()), tuple(t["complaints"]), t["reason"])
            for t in tables
            if t["arch"] == arch and version.startswith(t.get("triton", ""))
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgument(
            "machine-code: `--known` expected a TOML file of tables [[known]] with arch, kernel, flags, complaints and "
            f"reason, got {path}: {type(error).__name__}: {error}; see packages/plugins-triton/machine-code/known.toml"
        ) from None


def sort_out(complaints: Sequence[str], known: Sequence[Known]) -> tuple[list[str], list[str], list[str]]:
    """(complaints that remain, known ones with their reasons, exceptions that no complaint needed)."""
    stay, excused, needed = [], [], set()
    for line in complaints:
        found = next((k for k in known if k.covers(line)), None)
        if found is None:
            stay.append(line)
        else:
            needed.add(found)
            excused.append(f"{line} (known: {found.reason})")
    stale = [k for k in known if k not in needed]
    texts = [f"{k.kernel} {' '.join(k.flags)}: known, but no longer found: remove it from the list" for k in stale]
    return stay, excused, texts
