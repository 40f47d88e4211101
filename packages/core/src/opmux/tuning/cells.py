"""The cells of the plan key: the calls that one plan serves, since the records have one answer for all of them."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from opmux.signatures.signature import Option
from opmux.tuning.entries import Entry
from opmux.tuning.matching import Matching

UNMATCHED = "none"
"""The feature's value if no record has the call's exact dims."""

OTHER = "other"
"""The value in the key for every value of an option that no record names."""


class Grid:
    """The cells of calls with equal exact dims: between which recorded values each size lies."""

    def __init__(self, text: str, names: Sequence[str], recorded: Sequence[Iterable[int]]) -> None:
        # The last bound is omitted: sizes above it take the same record as sizes just below it.
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
        """``n=4096 k=7168 tokens<=128``: shown by explain, and a string, which is cheap to look up."""
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
        self, matching: Matching, tuples: Sequence[Option], freed: Sequence[Option], entries: Sequence[Entry]
    ) -> None:
        places = [place for place, option in enumerate(matching.fixed) if option in tuples]
        names = (*matching.exact, *(option.name for option in tuples))
        grouped: dict[tuple[Any, ...], list[Entry]] = {}
        for entry in entries:
            _, _, fixed, exact = entry.base
            grouped.setdefault((*exact, *(fixed[place] for place in places)), []).append(entry)
        self._grids = {
            exact: Grid(
                " ".join(f"{n}={_short(v)}" for n, v in zip(names, exact, strict=True)),
                matching.nearest,
                [{e.sizes[place] for e in group} for place in range(len(matching.nearest))],
            )
            for exact, group in grouped.items()
        }
        self._recorded = [{v for e in entries for name, v in e.free if name == o.name} for o in freed]

    def of_one(self, exact: tuple[Any, ...], size: int) -> str:
        """The cell of a call of an op with one size that is matched to the nearest."""
        grid = self._grids.get(exact)
        return UNMATCHED if grid is None else grid.single[bisect_left(grid.only, size)]

    def of(self, exact: tuple[Any, ...], *sizes: int) -> str:
        """The cell of a call of an op with any number of such sizes."""
        grid = self._grids.get(exact)
        if grid is None:
            return UNMATCHED
        return grid.labels[tuple([bisect_left(b, s) for b, s in zip(grid.bounds, sizes, strict=True)])]

    def of_free(self, exact: tuple[Any, ...], free: tuple[Any, ...], *sizes: int) -> Any:
        """The cell if some records name options that others do not: all values without a record share one cell."""
        cell = self.of(exact, *sizes)
        if cell is UNMATCHED:
            return cell
        known = zip(free, self._recorded, strict=True)
        return (cell, *(value if value in recorded else OTHER for value, recorded in known))


def _short(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
