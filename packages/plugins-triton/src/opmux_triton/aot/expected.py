"""The recorded results of an arch, keyed by Triton version, in one JSON file per arch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opmux.plugin import InvalidArgument
from opmux_triton.aot.facts import Facts


def read(path: Path, version: str) -> dict[str, Any] | None:
    """The rows recorded under a version of Triton, or None where there are none.

    Raises:
        InvalidArgument: where the file is no such record.
    """
    if not path.exists():
        return None
    try:
        found: dict[str, Any] | None = json.loads(path.read_text(encoding="utf-8")).get(version)
    except (ValueError, AttributeError) as error:
        raise InvalidArgument(
            f"machine-code: `--expected` expected a JSON object of rows by Triton version, got {path}: {error}; "
            "write it again with --write"
        ) from None
    return found


def write(path: Path, version: str, rows: Mapping[str, Facts], *, some: bool = False) -> None:
    """Record rows under a version; those of other versions stay, and with ``some`` this version's other rows too."""
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    kept = known.get(version, {}) if some else {}
    known[version] = dict(sorted({**kept, **{key: facts.as_dict() for key, facts in rows.items()}}.items()))
    lines = ["{"]
    for place, (name, recorded) in enumerate(sorted(known.items())):
        body = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v, sort_keys=True)}" for k, v in recorded.items())
        lines.append(f" {json.dumps(name)}: {{\n{body}\n }}" + ("," if place + 1 < len(known) else ""))
    path.write_text("\n".join([*lines, "}"]) + "\n", encoding="utf-8")
