"""The records of one op that are in force: what they say of a call, and the feature of the op's plan key.

The feature names the cell that a call lies in: its exact dims, and between which recorded values its other sizes
are. Within a cell every arch, dtype and backend has one answer, so a plan serves the whole cell.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from opmux.callpath.op import Op
from opmux.declared.call import Call
from opmux.declared.features import Feature, size_source
from opmux.planning.resolver import TunedChoice
from opmux.signatures.signature import Option
from opmux.tuning.records import TunedRecord
from opmux.tuning.roles import Roles, roles_of

UNMATCHED = "none"
"""The feature's value where no record has the call's exact dims."""

OTHER = "other"
"""Stands in a key for every value of an option that no record names."""

Base = tuple[Any, ...]


@dataclass(frozen=True)
class Entry:
    """A record in force, as calls are matched to it.

    Attributes:
        base: what must be equal: arch, dtypes, fixed options, exact dims.
        free: options that only this record and some others name.
        sizes: its nearest dims.
        picks: it may pick its backend.
    """

    record: TunedRecord
    base: Base
    free: tuple[tuple[str, Any], ...]
    sizes: tuple[int, ...]
    picks: bool

    @property
    def place(self) -> tuple[Any, ...]:
        """What a later layer replaces as a whole, with the backend."""
        return self.base, self.free, self.sizes


def entry_of(op: Op, record: TunedRecord) -> Entry:
    """A record as calls are matched to it."""
    roles = roles_of(op)
    given = {o.name: record.options.get(o.name, o.default) for o in op.signature.options}
    base = (
        record.arch,
        tuple(record.dtypes.get(t.name) for t in op.signature.tensors),
        tuple(given[o.name] for o in roles.fixed),
        tuple(record.dims[name] for name in roles.exact),
    )
    free = tuple((o.name, given[o.name]) for o in roles.free if o.name in record.options)
    sizes = tuple(int((record.dims[n] if n in record.dims else given[n]) or 0) for n in roles.nearest)
    return Entry(record, base, free, sizes, record.compared >= 2)


class OpTable:
    """The records of one op."""

    def __init__(self, op: Op, entries: Iterable[Entry]) -> None:
        self.op = op
        self.roles = roles_of(op)
        self.entries = tuple(entries)
        self._by_base: dict[Base, list[Entry]] = {}
        for entry in self.entries:
            self._by_base.setdefault(entry.base, []).append(entry)

    def find(self, call: Call) -> TunedChoice | None:
        """What the records say of a call: the choice that picks, where one does, and a config for each backend."""
        base = (
            call.arch.name,
            tuple(None if tensor is None else tensor.dtype for tensor in call.tensors.values()),
            tuple(call.options[o.name] for o in self.roles.fixed),
            tuple(call.size(name) for name in self.roles.exact),
        )
        fitting = [
            entry
            for entry in self._by_base.get(base, ())
            if all(call.options[name] == value for name, value in entry.free)
        ]
        if not fitting:
            return None
        sizes = tuple(int(call.size(name) or 0) for name in self.roles.nearest)
        choices: dict[str, TunedChoice] = {}
        picking = [entry for entry in fitting if entry.picks]
        if picking:
            best = nearest(picking, sizes)
            choices[best.record.backend] = self._choice(best, sizes, picks=True)
        for backend in sorted({entry.record.backend for entry in fitting} - choices.keys()):
            own = nearest([entry for entry in fitting if entry.record.backend == backend], sizes)
            choices[backend] = self._choice(own, sizes, picks=False)
        first, *others = choices.values()
        return TunedChoice(first.backend, first.config, first.picks, first.note, tuple(others))

    def _choice(self, entry: Entry, sizes: tuple[int, ...], picks: bool) -> TunedChoice:
        record = entry.record
        return TunedChoice(record.backend, record.config, picks, f"{self._match(entry, sizes)}, {record.where}")

    def _match(self, entry: Entry, sizes: tuple[int, ...]) -> str:
        """``tuned for tokens=4096 (nearest to 3000)``."""
        names = self.roles.nearest
        if not names:
            return "tuned for these dims (exact)"
        recorded = " ".join(f"{name}={size}" for name, size in zip(names, entry.sizes, strict=True))
        if entry.sizes == sizes:
            return f"tuned for {recorded} (exact)"
        if len(names) == 1:
            return f"tuned for {recorded} (nearest to {sizes[0]})"
        asked = " ".join(f"{name}={size}" for name, size in zip(names, sizes, strict=True))
        return f"tuned for {recorded} (nearest to {asked})"

    def feature(self, function: str) -> tuple[Feature, Callable[..., str]] | None:
        """The feature of the op's plan key, and the function of that name which it calls; None where none is needed.

        It leaves out archs that this build of torch cannot run, and nothing else: a key does not know its arch.
        """
        entries = [entry for entry in self.entries if runs_here(entry.record.arch)]
        if not entries:
            return None
        signature, roles = self.op.signature, self.roles
        tuples = [o for o in roles.fixed if not o.is_flag]
        exact = [size_source(signature, name) for name in roles.exact] + [_tuple_source(o) for o in tuples]
        freed = [o for o in roles.free if any(o.name == name for e in entries for name, _ in e.free)]
        sizes = [_size_source(signature, name) for name in roles.nearest]
        free = [_tuple_source(o) if o.kind == "bools" else o.name for o in freed]
        arguments = [_tuple_of(exact), *([_tuple_of(free)] if free else []), *sizes]
        cells = Cells(roles, tuples, freed, entries)
        called = cells.of_free if free else cells.of_one if len(sizes) == 1 else cells.of
        return Feature("tuned", f"{function}({', '.join(arguments)})"), called


def nearest(entries: Sequence[Entry], sizes: tuple[int, ...]) -> Entry:
    """The record to take: of those that name the most options, for each size in turn the smallest recorded value that
    is not below the call's, else the largest recorded; of equal ones the fastest.
    """
    named = min(((-len(e.free), tuple(name for name, _ in e.free)) for e in entries), default=(0, ()))[1]
    left = [e for e in entries if tuple(name for name, _ in e.free) == named]
    for place, size in enumerate(sizes):
        recorded = {e.sizes[place] for e in left}
        taken = min((value for value in recorded if value >= size), default=max(recorded))
        left = [e for e in left if e.sizes[place] == taken]
    return min(left, key=lambda e: (e.record.time_us, e.record.backend))


def runs_here(arch: str) -> bool:
    """Whether this build of torch has devices of that arch's vendor; asks no device."""
    if arch.startswith("sm_"):
        return torch.version.cuda is not None
    return torch.version.hip is not None if arch.startswith("gfx") else True


def _tuple_of(sources: Sequence[str]) -> str:
    return f"({', '.join(sources)}{',' if len(sources) == 1 else ''})"


def _tuple_source(option: Option) -> str:
    """A caller may pass a list, which no dict can look up."""
    made = f"tuple({option.name})"
    return f"(None if {option.name} is None else {made})" if option.nullable else made


def _size_source(signature: Any, name: str) -> str:
    nullable = any(o.name == name and o.nullable for o in signature.options)
    return f"({name} or 0)" if nullable else size_source(signature, name)


class Grid:
    """The cells of calls with equal exact dims: between which recorded values each size lies."""

    def __init__(self, text: str, names: Sequence[str], recorded: Sequence[Iterable[int]]) -> None:
        # The last bound is left out: what lies above it takes the same record as what lies just below.
        self.bounds = [sorted(set(values))[:-1] for values in recorded]
        parts = [
            [f"{name}<={bound}" for bound in bounds] + ([f"{name}>{bounds[-1]}"] if bounds else [""])
            for name, bounds in zip(names, self.bounds, strict=True)
        ]
        self.only = self.bounds[0] if len(self.bounds) == 1 else []
        self._parts, self._text = parts, text
        self.labels: Mapping[tuple[int, ...], str] = _Labels(self)
        self.single = [self.label((place,)) for place in range(len(parts[0]))] if len(parts) == 1 else []

    def label(self, cell: tuple[int, ...]) -> str:
        """``n=4096 k=7168 tokens<=128``: shown by explain, and as a string of its own cheap to look up."""
        words = [self._text, *(parts[place] for parts, place in zip(self._parts, cell, strict=True))]
        return " ".join(word for word in words if word) or "all"


class _Labels(dict[tuple[int, ...], str]):
    def __init__(self, grid: Grid) -> None:
        super().__init__()
        self._grid = grid

    def __missing__(self, cell: tuple[int, ...]) -> str:
        return self.setdefault(cell, self._grid.label(cell))


class Cells:
    """Finds the cell of a call, for the plan key: exact dims, options that some record names, and the other sizes."""

    def __init__(
        self, roles: Roles, tuples: Sequence[Option], freed: Sequence[Option], entries: Sequence[Entry]
    ) -> None:
        places = [place for place, option in enumerate(roles.fixed) if option in tuples]
        names = (*roles.exact, *(option.name for option in tuples))
        grouped: dict[tuple[Any, ...], list[Entry]] = {}
        for entry in entries:
            _, _, fixed, exact = entry.base
            grouped.setdefault((*exact, *(fixed[place] for place in places)), []).append(entry)
        self._grids = {
            exact: Grid(
                " ".join(f"{n}={_short(v)}" for n, v in zip(names, exact, strict=True)),
                roles.nearest,
                [{e.sizes[place] for e in group} for place in range(len(roles.nearest))],
            )
            for exact, group in grouped.items()
        }
        self._recorded = [{v for e in entries for name, v in e.free if name == o.name} for o in freed]

    def of_one(self, exact: tuple[Any, ...], size: int) -> str:
        """The cell where one size is sought."""
        grid = self._grids.get(exact)
        return UNMATCHED if grid is None else grid.single[bisect_left(grid.only, size)]

    def of(self, exact: tuple[Any, ...], *sizes: int) -> str:
        """The cell where any number of sizes are."""
        grid = self._grids.get(exact)
        if grid is None:
            return UNMATCHED
        return grid.labels[tuple([bisect_left(b, s) for b, s in zip(grid.bounds, sizes, strict=True)])]

    def of_free(self, exact: tuple[Any, ...], free: tuple[Any, ...], *sizes: int) -> Any:
        """The cell where records name options that others leave open: a value nobody recorded is one of the rest."""
        cell = self.of(exact, *sizes)
        if cell is UNMATCHED:
            return cell
        known = zip(free, self._recorded, strict=True)
        return (cell, *(value if value in recorded else OTHER for value, recorded in known))


def _short(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def in_force(op: Op, layers: Iterable[Sequence[TunedRecord]]) -> OpTable:
    """Merge layers, the lowest first; the rows of one layer name no place and backend twice.

    A record replaces that of a lower layer for the same place and backend. At one place only the highest layer that
    has records which pick keeps them so; what a lower one had compared still gives configs.
    """
    kept: dict[tuple[Any, ...], Entry] = {}
    highest: dict[tuple[Any, ...], int] = {}
    layer_of: dict[tuple[Any, ...], int] = {}
    for layer, records in enumerate(layers):
        for entry in (entry_of(op, record) for record in records):
            key = (*entry.place, entry.record.backend)
            kept[key], layer_of[key] = entry, layer
            if entry.picks:
                highest[entry.place] = layer
    entries = [
        entry
        if not entry.picks or layer_of[key] == highest[entry.place]
        else Entry(entry.record, entry.base, entry.free, entry.sizes, False)
        for key, entry in kept.items()
    ]
    return OpTable(op, entries)
