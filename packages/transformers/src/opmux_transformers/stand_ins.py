"""Copies of configurations that name opmux's implementations: other models may hold the originals too."""

import copy
from collections.abc import Collection
from typing import Any

from opmux_transformers.survey import Survey
from opmux_transformers.undo import Patch, StandIn


def switch(survey: Survey, patch: Patch, paths: Collection[str], attribute: str, name: str, kind: str) -> None:
    """Have the configurations of some modules name an implementation, in copies that the whole model gets.

    Args:
        survey: The model.
        patch: Where the change is recorded.
        paths: The modules whose configurations are meant.
        attribute: The attribute of a configuration that names the implementation.
        name: The implementation's name.
        kind: The kind that undoes it.
    """
    switched = {id(vars(survey.modules[path])["config"]) for path in paths}
    standing = {id(config.made): config for config in patch.configs}  # the copies of the kinds before this one
    made: dict[int, Any] = {}

    def stand_in(config: Any) -> Any:
        if id(config) in made:
            return made[id(config)]
        inner = {k: getattr(config, k, None) for k in getattr(config, "sub_configs", {})}
        changed = {k: new for k, c in inner.items() if c is not None and (new := stand_in(c)) is not c}
        if id(config) in switched:
            changed[attribute] = name
        new = copy.copy(config) if changed and id(config) not in standing else config
        vars(new).update(changed)
        if new is not config:
            patch.configs.append(StandIn(config, new, dict(vars(new))))
        elif changed:
            standing[id(config)].at_first.update(changed)
        made[id(config)] = new
        return new

    for module in survey.modules.values() if switched else ():
        config = vars(module).get("config")
        if config is not None and hasattr(config, attribute):
            new = stand_in(config)
            if new is not config:
                patch.set(module, "config", new, kind)
