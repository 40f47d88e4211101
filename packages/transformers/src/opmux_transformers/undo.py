"""What a patch changed, so that the very objects can be put back."""

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from opmux_transformers.reporting import Report

ABSENT = "absent"
STATE = "_opmux_patch"
"""The attribute of a patched model that holds its `Patch`; deepcopy copies it along, with the modules it names."""


@dataclass
class StandIn:
    """A configuration that stands in for a model's own, which other models may hold too."""

    own: Any
    made: Any
    at_first: dict[str, Any]
    """Its attributes when it was made."""

    def hand_back(self) -> None:
        """Set in the model's own what the user has set in this one since."""
        for key, value in vars(self.made).items():
            first = self.at_first.get(key, self)
            if first is not value and not (isinstance(value, str) and first == value):
                vars(self.own)[key] = value


@dataclass
class Patch:
    """A patch in force: its report, its options, and what stood where something else stands now."""

    report: Report
    options: dict[str, bool]
    changes: list[tuple[Any, str, Any]] = field(default_factory=list)
    configs: list[StandIn] = field(default_factory=list)
    unloaded: int = 0
    """How many of the model's tensors were on the meta device, and could not be looked at."""

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of an object itself, and remember what was there."""
        self.changes.append((owner, name, vars(owner).get(name, ABSENT)))
        write_all(vars(owner), {name: value})

    def undo(self) -> None:
        """Put everything back, the last change first."""
        while self.changes:
            owner, name, before = self.changes.pop()
            write_all(vars(owner), {name: before})
        for config in self.configs:
            config.hand_back()
        self.configs.clear()
        self.report.active = False


def write_all(own: dict[str, Any], values: dict[str, Any]) -> None:
    """Write an object's attributes past its own bookkeeping: neither a forward nor a configuration is a child."""
    for name, value in values.items():
        if isinstance(value, str) and value == ABSENT:
            own.pop(name, None)
        else:
            own[name] = value


def state_of(model: nn.Module) -> Patch | None:
    """The patch in force on a model, or None."""
    patch = vars(model).get(STATE)
    return patch if isinstance(patch, Patch) else None
