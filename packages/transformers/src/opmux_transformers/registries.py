"""transformers' registries of experts functions: one for plain weights, one for those of fine-grained fp8.

A class of experts asks one of them through a decorated forward; the configuration names the function.
"""

import copy
import inspect
from collections.abc import Callable
from typing import Any

from torch import nn
from transformers.integrations.finegrained_fp8 import ALL_FP8_EXPERTS_FUNCTIONS
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, ExpertsInterface

REGISTRIES: tuple[Any, ...] = (ALL_EXPERTS_FUNCTIONS, ALL_FP8_EXPERTS_FUNCTIONS)

NAMED = "_experts_implementation_internal"
"""The attribute of a configuration that names its experts function."""


def asks_registry(module: nn.Module) -> bool:
    """Whether the forward of a module's class, or one that it inherits, asks a registry of experts."""
    return "config" in vars(module) and _decorated(type(module)) is not None


def asks_fp8_registry(module: nn.Module) -> bool:
    """Whether it asks the registry of fine-grained fp8."""
    return asks_registry(module) and registry_of(type(module)) is ALL_FP8_EXPERTS_FUNCTIONS


def with_eager_experts(config: Any) -> Any:
    """A copy of a configuration under which experts are computed by their class's own forward."""
    made = copy.copy(config)
    vars(made)[NAMED] = "eager"
    return made


def registry_of(cls: type) -> Any:
    """The registry that the forward of a class asks.

    Raises:
        TypeError: if it asks none.
    """
    found = _decorated(cls)
    if found is None:
        raise TypeError(f"the forward of {cls.__name__} does not ask transformers' experts registry")
    return found[1]


def eager_forward(cls: type) -> Callable[..., Any]:
    """The forward that a class defines, below the one that asks a registry.

    Raises:
        TypeError: if it asks none.
    """
    found = _decorated(cls)
    if found is None:
        raise TypeError(f"the forward of {cls.__name__} does not ask transformers' experts registry")
    below: Callable[..., Any] = inspect.unwrap(found[0])
    return below


def _decorated(cls: type) -> tuple[Callable[..., Any], Any] | None:
    """The first forward among a class and those it inherits from that asks a registry, and that registry."""
    for base in cls.__mro__:
        forward: Callable[..., Any] | None = vars(base).get("forward")
        for cell in getattr(forward, "__closure__", None) or ():
            registry = _contents(cell)
            if forward is not None and any(registry is one for one in REGISTRIES):
                return forward, registry
    return None


def _contents(cell: Any) -> Any:
    try:
        contents = cell.cell_contents
    except ValueError:  # not set yet
        return None
    return contents if isinstance(contents, ExpertsInterface) else None
