"""Patched modules in ``pickle`` and ``copy.deepcopy``: a file stores them without the patch, a copy is patched too.

A file stores only the name of a function, and a function made for one module cannot be found by its name. So
``torch.save(model)`` writes the unpatched model, and a loaded model can be patched like any other.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from opmux_transformers.compressed import unsuspended
from opmux_transformers.undo import ABSENT, DEEPCOPY, REDUCE, STATE, Patch, StandIn, write_all


def survive_pickle(model: nn.Module, patch: Patch) -> None:
    """Make every changed module pickle as it was before the patch. Call this after all other changes."""
    modules, before = {id(model): model}, {id(model): dict[str, Any]()}
    for change in patch.changes:
        modules[id(change.owner)] = change.owner
        before.setdefault(id(change.owner), {}).setdefault(change.name, change.before)
    configs = {id(config.own): config for config in patch.configs}
    for key, module in modules.items():
        earlier = getattr(vars(module).get(REDUCE), "__self__", None)
        if isinstance(earlier, _Unpatched):  # part of another patched model
            earlier.before = {**before[key], **earlier.before}
            continue
        unpatched = _Unpatched(module, {**before[key], STATE: ABSENT}, configs.get(id(before[key].get("config"))))
        patch.set(module, REDUCE, unpatched.reduce)
        patch.set(module, DEEPCOPY, unpatched.deepcopy)


@dataclass(eq=False)
class _Unpatched:
    """A module as it was before the patch.

    Attributes:
        module: The module.
        before: The earlier values of the attributes that the patch set.
        config: Its configuration, if a copy replaces it.
    """

    module: nn.Module
    before: dict[str, Any]
    config: StandIn | None

    def reduce(self, protocol: Any) -> Any:
        """What ``pickle`` asks for: the class's own result, computed while the module is in its unpatched state."""
        if self.config is not None:
            self.config.hand_back()
        with self._changed({**self.before, **unsuspended(self.module), REDUCE: ABSENT, DEEPCOPY: ABSENT}):
            result = self.module.__reduce_ex__(protocol)
            if isinstance(result, tuple) and len(result) > 2 and result[2] is vars(self.module):
                result = (*result[:2], dict(result[2]), *result[3:])
        return result

    def deepcopy(self, memo: dict[int, Any]) -> nn.Module:
        """What ``copy.deepcopy`` asks for: an ordinary copy, patched like the module."""
        with self._changed({REDUCE: ABSENT, DEEPCOPY: ABSENT}):
            made = copy.deepcopy(self.module, memo)
        other = _Unpatched(made, copy.deepcopy(self.before, memo), copy.deepcopy(self.config, memo))
        vars(made).update({REDUCE: other.reduce, DEEPCOPY: other.deepcopy})
        return made

    @contextmanager
    def _changed(self, values: dict[str, Any]) -> Iterator[None]:
        """The module with other attributes inside the context."""
        own = vars(self.module)
        now = {name: own.get(name, ABSENT) for name in values}
        try:
            write_all(own, values)
            yield
        finally:
            write_all(own, now)
