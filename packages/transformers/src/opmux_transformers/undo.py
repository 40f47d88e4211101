"""What a patch changed, so that the original objects can be put back."""

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from opmux_transformers.reporting import Report

ABSENT = "absent"
STATE = "_opmux_patch"
"""The attribute of a patched model that holds its `Patch`; deepcopy copies it too, with the modules it names."""

REDUCE, DEEPCOPY = "__reduce_ex__", "__deepcopy__"
"""What ``pickle`` and ``copy.deepcopy`` ask an object for before they ask its class."""

NOT_COPIED = frozenset({STATE, REDUCE, DEEPCOPY})
"""Attributes of a patched module that do not affect its computation."""


@dataclass
class StandIn:
    """A configuration that replaces a model's own, because other models may hold the original too."""

    own: Any
    made: Any
    at_first: dict[str, Any]
    """Its attributes when it was made."""

    def hand_back(self) -> None:
        """Copy to the model's own what the user has set in this one since."""
        for key, value in vars(self.made).items():
            first = self.at_first.get(key, self)
            if first is not value and not (isinstance(value, str) and first == value):
                vars(self.own)[key] = value


@dataclass
class Change:
    """One attribute that a patch has set.

    Attributes:
        owner: The object whose attribute it is.
        name: The attribute.
        before: The previous value; `ABSENT` if there was none.
        kind: The name of the kind that set it; empty if it serves all kinds.
    """

    owner: Any
    name: str
    before: Any
    kind: str = ""


@dataclass
class Patch:
    """A patch in force.

    Attributes:
        report: What it did.
        options: Which kinds were wanted.
        changes: What it changed, in order.
        configs: The configurations that stand in for the model's own.
        unloaded: How many of the model's tensors were on the meta device, and could not be checked.
        linears: The classes of its linear layers, by path.
    """

    report: Report
    options: dict[str, Any]
    changes: list[Change] = field(default_factory=list)
    configs: list[StandIn] = field(default_factory=list)
    unloaded: int = 0
    linears: dict[str, str] = field(default_factory=dict)

    def set(self, owner: Any, name: str, value: Any, kind: str = "") -> None:
        """Set an attribute of an object itself, and remember what was there."""
        self.changes.append(Change(owner, name, vars(owner).get(name, ABSENT), kind))
        write_all(vars(owner), {name: value})

    def put_back(self, kind: str = "") -> None:
        """Undo the changes of one kind, the last change first."""
        for change in reversed([change for change in self.changes if change.kind == kind]):
            write_all(vars(change.owner), {change.name: change.before})
        self.changes = [change for change in self.changes if change.kind != kind]


def options_apart(before: dict[str, Any], now: dict[str, Any]) -> tuple[str, str]:
    """The options in which two patches differ, as arguments of the earlier and of the later one."""
    names = [name for name, value in before.items() if now[name] != value]
    earlier, later = (", ".join(f"{name}={options[name]!r}" for name in names) for options in (before, now))
    return earlier, later


def write_all(own: dict[str, Any], values: dict[str, Any]) -> None:
    """Write an object's attributes directly, past a module's bookkeeping of its children."""
    for name, value in values.items():
        if isinstance(value, str) and value == ABSENT:
            own.pop(name, None)
        else:
            own[name] = value


def state_of(model: nn.Module) -> Patch | None:
    """The patch in force on a model, or None."""
    patch = vars(model).get(STATE)
    return patch if isinstance(patch, Patch) else None
