"""The records of one op that are in force: what they say of a call, and the feature of the op's plan key.

The feature names the cell that a call belongs to: its exact dims, and the recorded values between which its other sizes
lie. Within a cell every arch, dtype and backend has one answer, so one plan serves the whole cell.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from opmux.callpath.op import Op
from opmux.declared.call import Call
from opmux.declared.features import Feature, size_source
from opmux.signatures.signature import Option
from opmux.tuning.cells import Cells
from opmux.tuning.choice import TunedChoice
from opmux.tuning.entries import Base, Entry, entry_of, nearest
from opmux.tuning.matching import matching_of
from opmux.tuning.record import TunedRecord
from opmux.tuning.steps import Steps


class OpTable:
    """The records of one op."""

    def __init__(self, op: Op, entries: Iterable[Entry]) -> None:
        self.op = op
        self.matching = matching_of(op)
        self.entries = tuple(entries)
        self._by_base: dict[Base, list[Entry]] = {}
        for entry in self.entries:
            self._by_base.setdefault(entry.base, []).append(entry)

    def find(self, call: Call, steps: Mapping[str, Steps] | None = None) -> TunedChoice | None:
        """What the records say about a call: the choice that picks, if one does, and a config for each backend.

        Args:
            call: the call.
            steps: how sizes are rounded in the plan key, where measured rows are in force: a record of the rounded
                sizes is of this very point, since all calls of a step share a plan.
        """
        base = (
            call.arch.name,
            tuple(None if tensor is None else tensor.dtype for tensor in call.tensors.values()),
            tuple(call.options[o.name] for o in self.matching.fixed),
            tuple(call.size(name) for name in self.matching.exact),
        )
        fitting = [
            entry
            for entry in self._by_base.get(base, ())
            if all(call.options[name] == value for name, value in entry.free)
        ]
        if not fitting:
            return None
        sizes = tuple(int(call.size(name) or 0) for name in self.matching.nearest)
        stepped = tuple(
            steps[name][size] if steps and name in steps else size
            for name, size in zip(self.matching.nearest, sizes, strict=True)
        )
        choices: dict[str, TunedChoice] = {}
        picking = [entry for entry in fitting if entry.picks]
        if picking:
            best = nearest(picking, sizes)
            choices[best.record.backend] = self._choice(best, sizes, stepped, picks=True)
        for backend in sorted({entry.record.backend for entry in fitting} - choices.keys()):
            own = nearest([entry for entry in fitting if entry.record.backend == backend], sizes)
            choices[backend] = self._choice(own, sizes, stepped, picks=False)
        first, *others = choices.values()
        return replace(first, others=tuple(others))

    def _choice(self, entry: Entry, sizes: tuple[int, ...], stepped: tuple[int, ...], picks: bool) -> TunedChoice:
        record = entry.record
        note = f"{self._match(entry, sizes)}, {record.where}"
        return TunedChoice(record.backend, record.config, picks, note, entry.sizes == stepped)

    def _match(self, entry: Entry, sizes: tuple[int, ...]) -> str:
        """``tuned for tokens=4096 (nearest to 3000)``."""
        names = self.matching.nearest
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
        """The feature of the op's plan key, and the function of that name which it calls; None if none is needed.

        Only archs that this build of torch cannot run are omitted: a key does not contain the arch.
        """
        entries = [entry for entry in self.entries if runs_here(entry.record.arch)]
        if not entries:
            return None
        signature, matching = self.op.signature, self.matching
        tuples = [o for o in matching.fixed if not o.is_flag]
        exact = [size_source(signature, name) for name in matching.exact] + [tuple_source(o) for o in tuples]
        freed = [o for o in matching.free if any(o.name == name for e in entries for name, _ in e.free)]
        sizes = [changing_size_source(signature, name) for name in matching.nearest]
        free = [tuple_source(o) if o.kind == "bools" else o.name for o in freed]
        arguments = [_tuple_of(exact), *([_tuple_of(free)] if free else []), *sizes]
        cells = Cells(matching, tuples, freed, entries)
        called = cells.of_free if free else cells.of_one if len(sizes) == 1 else cells.of
        return Feature("tuned", f"{function}({', '.join(arguments)})"), called


def runs_here(arch: str) -> bool:
    """Whether this build of torch has devices of that arch's vendor; asks no device."""
    if arch.startswith("sm_"):
        return torch.version.cuda is not None
    return torch.version.hip is not None if arch.startswith("gfx") else True


def _tuple_of(sources: Sequence[str]) -> str:
    return f"({', '.join(sources)}{',' if len(sources) == 1 else ''})"


def tuple_source(option: Option) -> str:
    """The source of an option as a tuple: a caller may pass a list, which is not hashable."""
    made = f"tuple({option.name})"
    return f"(None if {option.name} is None else {made})" if option.nullable else made


def changing_size_source(signature: Any, name: str) -> str:
    """The source that reads a dim or an option that is a size; 0 for an option that is None."""
    nullable = any(o.name == name and o.nullable for o in signature.options)
    return f"({name} or 0)" if nullable else size_source(signature, name)


def in_force(op: Op, layers: Iterable[Sequence[TunedRecord]]) -> OpTable:
    """Merge layers, the lowest first; a layer has at most one row for a place and backend.

    A record replaces that of a lower layer for the same place and backend. If records of several layers may pick at one
    place, only those of the highest layer do; those of lower layers still give configs.
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
