"""Known exceptions of a backend: a text file with a reason for each, kept beside its tests.

A line reads ``op | case | reason``; op and case are patterns (``*`` matches anything). Empty lines and lines that
begin with ``#`` are ignored::

    # op          | case                | why
    linear        | f16,*               | accumulates in float16: issue 12

A case that an exception names must fail. If it passes, or if an exception names no case, the suite fails: the file
never lists more than is true.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from opmux.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Exemption:
    """One line of the file.

    Attributes:
        where: file and line, for messages.
    """

    op: str
    case: str
    reason: str
    where: str

    def covers(self, op: str, case: str) -> bool:
        """Whether it names this case."""
        return fnmatchcase(op, self.op) and fnmatchcase(case, self.case)


def read_exceptions(path: str | Path) -> tuple[Exemption, ...]:
    """Read a file of known exceptions.

    Raises:
        InvalidArgument: If a line is not ``op | case | reason``, or gives no reason.
    """
    found = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        parts = [part.strip() for part in line.split("|", 2)]
        if len(parts) != 3 or not all(parts):
            raise InvalidArgument(
                f"conformance: `exceptions` expected lines of the form `op | case | reason`, got {line!r} at "
                f"{path}:{number}; give a reason for each"
            )
        op, case, reason = parts
        found.append(Exemption(op, case, reason, f"{path}:{number}"))
    return tuple(found)


def exemption_of(exemptions: tuple[Exemption, ...], op: str, case: str) -> Exemption | None:
    """The first exemption that names this case."""
    return next((e for e in exemptions if e.covers(op, case)), None)


def unused(exemptions: tuple[Exemption, ...], cases: list[tuple[str, str]]) -> list[Exemption]:
    """Exemptions that name none of these (op, case) pairs."""
    return [e for e in exemptions if not any(e.covers(op, case) for op, case in cases)]
