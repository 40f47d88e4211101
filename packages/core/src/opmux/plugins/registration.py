"""Registers what a plugin brings: each implementation with its op, none under a name that two packages declare."""

from dataclasses import dataclass
from typing import Self

from opmux.callpath.op import OPS, Op
from opmux.declared.implementation import Implementation
from opmux.errors import PluginError
from opmux.plugins import failures
from opmux.plugins.reading import LoadedPlugin, check_implementation

_refused: set[tuple[str, str]] = set()
"""Each (op, full name) that two packages declared: a third one cannot have it either."""


def register(made: LoadedPlugin) -> list[Implementation]:
    """Register a plugin's implementations one by one; what cannot be registered is recorded as a failure.

    If two have the same name, neither is kept, and a failure is recorded for both packages.

    Returns:
        Those that were registered.
    """
    accepted: dict[str, list[Implementation]] = {}
    for new in made.implementations:
        try:
            op = check_implementation(new)
        except PluginError as error:
            failures.record(made.name, made.distribution, made.version, str(error))
            continue
        added = accepted.setdefault(op.name, [])
        clash = next((i for i in (*op.implementations, *added) if i.full_name == new.full_name), None)
        if clash is None and (op.name, new.full_name) not in _refused:
            added.append(new)
            continue
        _refuse_both(op, new, clash)
        accepted[op.name] = [i for i in added if i is not clash]
    for name, added in accepted.items():
        if added:
            OPS[name].set_implementations((*OPS[name].implementations, *added))
    return [implementation for added in accepted.values() for implementation in added]


def _refuse_both(op: Op, new: Implementation, clash: Implementation | None) -> None:
    """Record that a name is declared twice, for every package that declares it, and drop the one already registered."""
    _refused.add((op.name, new.full_name))
    packages = {(i.backend, i.distribution, i.version) for i in (new, clash) if i is not None}
    names = " and ".join(sorted(f"{distribution} {version}" for _, distribution, version in packages))
    for backend, distribution, version in sorted(packages):
        reason = f"{new.full_name} of {op.name} is declared twice, by {names}: neither is loaded"
        failures.record(backend, distribution, version, reason)
    if clash is not None and clash in op.implementations:
        op.set_implementations(tuple(i for i in op.implementations if i is not clash))


def is_registered(implementation: Implementation) -> bool:
    """Whether an implementation is still registered with its op."""
    op = OPS.get(implementation.op)
    return op is not None and implementation in op.implementations


@dataclass(frozen=True)
class Checkpoint:
    """What is registered at one moment, so that it can be restored."""

    ops: frozenset[str]
    implementations: dict[str, tuple[Implementation, ...]]
    failed: tuple[failures.FailedPlugin, ...]
    refused: frozenset[tuple[str, str]]

    @classmethod
    def now(cls) -> Self:
        """What is registered now."""
        implementations = {op.name: op.implementations for op in OPS.values()}
        return cls(frozenset(OPS), implementations, failures.recorded(), frozenset(_refused))

    def restore_registrations(self) -> None:
        """Undo what was registered and recorded since; ops that were defined since stay."""
        for name, implementations in self.implementations.items():
            if OPS[name].implementations != implementations:
                OPS[name].set_implementations(implementations)
        failures.go_back_to(self.failed)
        _refused.intersection_update(self.refused)

    def restore(self) -> None:
        """Undo the registrations, and also drop the ops that were defined since."""
        for added in set(OPS) - self.ops:
            del OPS[added]
        self.restore_registrations()
