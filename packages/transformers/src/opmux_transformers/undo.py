"""What a patch changed, so that the very objects can be put back."""

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from opmux_transformers.reporting import Report

ABSENT = "absent"
STATE = "_opmux_patch"
"""The attribute of a patched model that holds its `Patch`; deepcopy copies it along, with the modules it names."""


@dataclass
class Patch:
    """A patch in force: its report, its options, and what stood where something else stands now."""

    report: Report
    options: dict[str, bool]
    changes: list[tuple[Any, str, Any]] = field(default_factory=list)
    configs: list[tuple[Any, Any, dict[str, Any]]] = field(default_factory=list)
    """(the model's own configuration, the one that stands in for it, its attributes when it was made)."""

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of an object itself, and remember what was there."""
        self.changes.append((owner, name, vars(owner).get(name, ABSENT)))
        _write(owner, name, value)

    def undo(self) -> None:
        """Put everything back, the last change first."""
        while self.changes:
            owner, name, before = self.changes.pop()
            if isinstance(before, str) and before == ABSENT:
                vars(owner).pop(name, None)
            else:
                _write(owner, name, before)
        for own, stand_in, at_first in self.configs:
            for key, value in vars(stand_in).items():
                if key not in at_first or at_first[key] is not value:  # set by the user since: it stays set
                    vars(own)[key] = value
        self.configs.clear()
        self.report.active = False


def _write(owner: Any, name: str, value: Any) -> None:
    """Write past a module's own bookkeeping: neither a forward nor a configuration is a parameter or a child."""
    vars(owner)[name] = value


def state_of(model: nn.Module) -> Patch | None:
    """The patch in force on a model, or None."""
    patch = vars(model).get(STATE)
    return patch if isinstance(patch, Patch) else None
