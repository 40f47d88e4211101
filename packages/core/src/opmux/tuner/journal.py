"""The journal of a run: one line of JSON for each point that is finished, on disk before the next one begins.

A run that was killed goes on where it stopped: points in the journal are skipped, and a last line that was cut off is
dropped. It also keeps what records do not: every candidate that failed, and why.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from opmux.errors import InvalidArgument, OpmuxError
from opmux.shapes import Point
from opmux.shapes.files import point_of
from opmux.tuner.candidates import Candidate, Failure
from opmux.tuner.machine import identity
from opmux.tuner.measuring import Measured, Request, Timing
from opmux.tuning.measured import Machine

SUFFIX = ".journal"
_FORMAT = 1


@dataclass(frozen=True)
class Entry:
    """A finished point.

    Attributes:
        machine: where it was measured.
        backends: the backends and implementations to which the run was restricted; None for no restriction.
        most_configs: how many configs of an implementation it tried at most; None for all.
    """

    measured: Measured
    machine: Machine
    backends: tuple[str, ...] | None = None
    most_configs: int | None = None

    @property
    def done(self) -> tuple[str, str]:
        """What a later run skips: this point on this machine."""
        return self.measured.point.key, identity(self.machine)

    def serves(self, request: Request) -> bool:
        """Whether it has what a run asks for: every implementation that it names, in as many configs."""
        if self.measured.lost:
            return False
        if request.backends is None or self.backends is None:
            named = request.backends is self.backends
        else:
            named = set(request.backends) <= set(self.backends)
        if self.most_configs is None or request.most_configs is None:
            return named and self.most_configs is None
        return named and request.most_configs <= self.most_configs


class Journal:
    """The journal beside a file of records; opened for one run, which holds the file's lock.

    Args:
        path: the journal's own file.

    Raises:
        InvalidArgument: where the file is no journal, or cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: list[Entry] = []
        self._whole = 0  # bytes of whole lines; a line that was cut off is overwritten
        try:
            lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        except OSError as error:
            raise InvalidArgument(f"tune: the journal {path} cannot be read: {error}") from None
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                break  # the run was killed while it wrote
            try:
                self.entries.append(_read(json.loads(line)))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise InvalidArgument(
                    f"tune: {path}:{number}: expected a line of a journal, got one that cannot be read ({error}); "
                    "delete the file to measure again"
                ) from None
            self._whole += len(line)

    def append(self, entry: Entry) -> None:
        """Write a finished point and wait until it is on disk.

        Raises:
            OpmuxError: where it cannot be written; what was there before stays as it was.
        """
        line = (json.dumps(_written(entry)) + "\n").encode()
        try:
            with self.path.open("r+b" if self.path.exists() else "w+b") as file:
                file.truncate(self._whole)
                file.seek(self._whole)
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise OpmuxError(
                f"tune: {self.path} cannot be written: {error.strerror or error}; the {len(self.entries)} points in it "
                "are kept: make room, and give the same command again"
            ) from None
        self._whole += len(line)
        self.entries.append(entry)

    def done(self, request_of: Callable[[Point], Request]) -> set[tuple[str, str]]:
        """The points that are finished for a run, by point and machine.

        Args:
            request_of: what the run asks for at a point. A point that was measured with other backends only, or in
                fewer configs, is not finished for it.
        """
        return {entry.done for entry in self.entries if entry.serves(request_of(entry.measured.point))}

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    @classmethod
    def beside(cls, records: Path) -> Self:
        """The journal of a file of rows: hidden, so that it is not taken for records where it lies in their folder."""
        return cls(records.with_name(f".{records.name}{SUFFIX}"))


def _written(entry: Entry) -> dict[str, Any]:
    measured = entry.measured
    return {
        "journal": _FORMAT,
        "point": measured.point.as_dict(),
        "machine": asdict(entry.machine),
        "timings": [asdict(timing) for timing in measured.timings],
        "failures": [asdict(failure) for failure in measured.failures],
        "builds": measured.builds,
        "build_s": measured.build_s,
        "flops": measured.flops,
        "problem": measured.problem,
        "lost": measured.lost,
        "backends": entry.backends,
        "most_configs": entry.most_configs,
    }


def _read(data: Mapping[str, Any]) -> Entry:
    if data["journal"] != _FORMAT:
        raise ValueError(f"its format is {data['journal']}, this opmux reads {_FORMAT}")
    measured = Measured(
        point_of(data["point"]),
        tuple(Timing(**timing | {"candidate": Candidate(**timing["candidate"])}) for timing in data["timings"]),
        tuple(Failure(**failure) for failure in data["failures"]),
        data["builds"],
        data["build_s"],
        data["flops"],
        data["problem"],
        data.get("lost", False),  # journals of older versions lack it, and the next two
    )
    backends = data.get("backends")
    return Entry(
        measured, Machine(**data["machine"]), None if backends is None else tuple(backends), data.get("most_configs")
    )
