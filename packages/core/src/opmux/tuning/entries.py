"""Records in the form that calls are matched against, and the rule of the nearest size."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from opmux.callpath.op import Op
from opmux.tuning.matching import matching_of
from opmux.tuning.record import TunedRecord

Base = tuple[Any, ...]


@dataclass(frozen=True)
class Entry:
    """A record in force, in the form that calls are matched against.

    Attributes:
        base: what must be equal: arch, dtypes, fixed options, exact dims.
        free: options that must be equal because this record names them; other records need not name them.
        sizes: its values of the sizes that are matched to the nearest.
        picks: whether it may pick its backend.
    """

    record: TunedRecord
    base: Base
    free: tuple[tuple[str, Any], ...]
    sizes: tuple[int, ...]
    picks: bool

    @property
    def place(self) -> tuple[Any, ...]:
        """Where the record applies: a higher layer replaces the record of the same place and backend."""
        return self.base, self.free, self.sizes


def entry_of(op: Op, record: TunedRecord) -> Entry:
    """Bring a record into the form that calls are matched against."""
    matching = matching_of(op)
    named = op.signature.settled(record.options, record.dtypes)
    given = {o.name: named.get(o.name, o.default) for o in op.signature.options}
    base = (
        record.arch,
        tuple(record.dtypes.get(t.name) for t in op.signature.tensors),
        tuple(given[o.name] for o in matching.fixed),
        tuple(record.dims[name] for name in matching.exact),
    )
    free = tuple((o.name, given[o.name]) for o in matching.free if o.name in record.options)
    sizes = tuple(int((record.dims[n] if n in record.dims else given[n]) or 0) for n in matching.nearest)
    return Entry(record, base, free, sizes, record.compared >= 2)


def nearest(entries: Sequence[Entry], sizes: tuple[int, ...]) -> Entry:
    """The record to take: among those that name the most options, the one with, for each size in turn, the smallest
    recorded value that is not below the call's, or else the largest; among equal ones, the fastest.
    """
    named = min(((-len(e.free), tuple(name for name, _ in e.free)) for e in entries), default=(0, ()))[1]
    left = [e for e in entries if tuple(name for name, _ in e.free) == named]
    for place, size in enumerate(sizes):
        recorded = {e.sizes[place] for e in left}
        taken = min((value for value in recorded if value >= size), default=max(recorded))
        left = [e for e in left if e.sizes[place] == taken]
    return min(left, key=lambda e: (e.record.time_us, e.record.backend))
