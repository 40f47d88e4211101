"""The plans of an op: by the full key, and behind a guard by what the guard does not settle."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

if TYPE_CHECKING:
    from opmux.callpath.op import OpState


class PlanTable(dict[Any, Callable[..., Any]]):
    """Plan key -> the callable that runs the plan.

    For a missing key it returns a callable that makes the plan, runs it, and stores it in this same table. A thread
    that still holds a replaced table finishes on it, and no plan made under an old policy reaches a new table.
    """

    LIMIT = 4096

    def __init__(self, state: "OpState", on_miss: Callable[..., Any]) -> None:
        super().__init__()
        self.state = state
        self.plans: dict[Any, Any] = {}
        self._on_miss = on_miss

    def __missing__(self, key: Any) -> Callable[..., Any]:
        return functools.partial(self._on_miss, self, key)

    def store(self, key: Any, run: Callable[..., Any], plan: Any) -> None:
        """Keep a plan; where the table is full, drop the oldest."""
        make_room(self, self.LIMIT, self.plans)
        self.plans[key] = plan
        self[key] = run

    def plan_of(self, key: Any) -> Any:
        """The plan behind a key, or None."""
        return self.plans.get(key)


def make_room(table: dict[Any, Any], limit: int, *beside: dict[Any, Any]) -> None:
    """Drop the oldest entries of a table until one more fits, and drop the same keys from the tables ``beside`` it."""
    while len(table) >= limit:
        try:
            oldest = next(iter(table))
        except (StopIteration, RuntimeError):  # another thread is doing the same
            return
        for each in (table, *beside):
            each.pop(oldest, None)


@dataclass(frozen=True)
class Forced:
    """A plan key with the caller's ``backend=``."""

    backend: str
    key: tuple[Any, ...]


class Front(dict[Any, Callable[..., Any]]):
    """The plans behind one guard, keyed by what the guard does not settle: a short cut to entries of a `PlanTable`.

    Attributes:
        backend: the caller's ``backend=``; None where calls name none.
    """

    NAMES: ClassVar[int] = 16
    """How many names of backends have plans of their own at a time."""

    def __init__(self, table: PlanTable, backend: str | None = None) -> None:
        super().__init__()
        self.table, self.state, self.backend = table, table.state, backend
        self._plans: dict[Any, Any] = {}
        self._keys: dict[Any, Any] = {}
        self._forced: dict[str, Front] = {}

    def forced(self, backend: Any) -> "Front | None":
        """The plans of calls with this ``backend=``; None where it is no name, which is explained elsewhere."""
        if backend.__class__ is not str:
            return None
        found = self._forced.get(backend)
        if found is None:
            make_room(self._forced, self.NAMES)
            found = self._forced[backend] = self._of(backend)
        return found

    def _of(self, backend: str) -> "Front":
        return Front(self.table, backend)

    def __missing__(self, key: Any) -> Callable[..., Any]:
        return functools.partial(self._through_table, key)

    def plan_of(self, key: Any) -> Any:
        """The plan behind a key of the table, or None. The table may have dropped a plan that is still used here."""
        return self._plans.get(key) or self.table.plan_of(key)

    def forget(self, full: Any) -> None:
        """Drop what is kept under a key of the table: the next call looks there again."""
        self._plans.pop(full, None)
        for key, found in tuple(self._keys.items()):
            if found == full:
                self.pop(key, None)
        for front in tuple(self._forced.values()):
            front.forget(full)

    def _through_table(self, key: Any, /, *tensors: Any, **options: Any) -> Any:
        full = self._full_key(tensors, options)
        result = self.table[full](*tensors, **options)
        plan, run = self.table.plan_of(full), self.table.get(full)
        if plan is not None and run is not None:
            self._keep(key, full, plan, run)
        return result

    def _full_key(self, tensors: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """The key of the table."""
        full: Any = self.table.state.key_of(*tensors, **options)
        return full if self.backend is None else Forced(self.backend, full)

    def _keep(self, key: Any, full: Any, plan: Any, run: Callable[..., Any]) -> None:
        make_room(self, PlanTable.LIMIT)
        make_room(self._plans, PlanTable.LIMIT)
        make_room(self._keys, PlanTable.LIMIT)
        self._plans[full], self._keys[key] = plan, full
        self[key] = run


class Writer(NamedTuple):
    """How results come into the tensors given as ``out=``.

    Attributes:
        first: checks these tensors in full and writes into them; called with the table, its key, the tensors, the
            options, and ``out``.
        made: from an op, a plan and the plan's callable, a callable that takes ``out=`` too and returns it.
    """

    first: Callable[..., Any]
    made: Callable[..., Callable[..., Any]]


class Into(Front):
    """The plans of calls with ``out=`` behind one guard, which knows the tensors to be written too."""

    def __init__(self, table: PlanTable, writer: Writer, backend: str | None = None) -> None:
        super().__init__(table, backend)
        self._writer = writer

    def _of(self, backend: str) -> "Into":
        return Into(self.table, self._writer, backend)

    def _through_table(self, key: Any, /, *tensors: Any, **options: Any) -> Any:
        out = options.pop("out")
        full = self._full_key(tensors, options)
        self._writer.first(self.table, full, tensors, options, out)
        plan, run = self.table.plan_of(full), self.table.get(full)
        if plan is not None and run is not None:
            self._keep(key, full, plan, self._writer.made(self.state.op, plan, run))
        return out


class Recording(dict[Any, Callable[..., Any]]):
    """What runs and records calls whose gradients are due, keyed as a `Front`.

    It has plans of its own: the op looks for its plans again while it is recorded, with gradients off, and would
    otherwise change its guard at every call.
    """

    def __init__(self, table: PlanTable, record: Callable[..., Any], instead: Callable[..., Any] | None) -> None:
        super().__init__()
        self.state, self.plans = table.state, Front(table)
        self.backend = None
        self._record, self._instead = record, instead

    def __missing__(self, key: Any) -> Callable[..., Any]:
        run = self.plans.get(key) if self._instead is None else self._instead
        if run is None:  # not planned yet: planned by the call
            return functools.partial(self._record, self.plans, self.plans[key])
        make_room(self, PlanTable.LIMIT)
        self[key] = made = functools.partial(self._record, self.plans, run)
        return made

    def forced(self, backend: Any) -> None:
        """None: calls that name a backend and are recorded take the long way."""

    def plan_of(self, key: Any) -> None:
        """None: what its plans raise is handled while they are recorded."""

    def forget(self, full: Any) -> None:
        """Drop what is kept under a key of the table."""
        self.plans.forget(full)
        self.clear()
