"""The survey of a model before anything is changed: what was found out about its modules, kind by kind."""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from opmux_transformers import agreement
from opmux_transformers.foreign import whose_class
from opmux_transformers.tables import Tables, find_tables, nearest

F = TypeVar("F")
"""What a kind finds out about a module."""

F_co = TypeVar("F_co", covariant=True)
R = TypeVar("R")


class Finder(Protocol[F_co]):
    """What the survey asks of a kind; `kinds.kind.Kind` is the whole interface."""

    @property
    def name(self) -> str:
        """The name of the kind in a report's rows."""
        ...

    @property
    def option(self) -> str | None:
        """The argument of `patch` that switches it off; None if there is none."""
        ...

    def find(self, survey: "Survey") -> Iterable[str]:
        """The paths of the modules that may be of this kind."""
        ...

    def judge(self, survey: "Survey", path: str) -> F_co | str | None:
        """The finding for a module, the reason to leave it, or None if it is not of this kind after all."""
        ...


@dataclass
class Survey:
    """A model and the findings about its modules.

    Attributes:
        model: The model.
        options: Which kinds are wanted.
        modules: All modules of the model, by path.
        results: What became of each module that was judged, by kind and path: a finding, the reason to leave it, or
            None if it is not of the kind.
    """

    model: nn.Module
    options: dict[str, Any]
    modules: dict[str, nn.Module] = field(init=False)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    _known: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.modules = dict(self.model.named_modules())

    def judge(self, kind: Finder[Any]) -> None:
        """Judge every module that may be of a kind."""
        results = self.results.setdefault(kind.name, {})
        for path in kind.find(self):
            results[path] = whose_class(path, self.modules) or kind.judge(self, path)

    def judged(self, kind: Finder[F], path: str) -> F | str | None:
        """The finding for one module, wanted or not; None if it was not judged."""
        result: F | str | None = self.results.get(kind.name, {}).get(path)
        return result

    def wants(self, kind: Finder[Any]) -> bool:
        """Whether the caller of `patch` wants a kind replaced."""
        return kind.option is None or bool(self.options[kind.option])

    def found(self, kind: Finder[F]) -> dict[str, F]:
        """The modules of a kind that are replaced, by path."""
        if not self.wants(kind):
            return {}
        results: dict[str, F | str | None] = self.results.get(kind.name, {})
        return {path: r for path, r in results.items() if r is not None and not isinstance(r, str)}

    def children_found(self, kind: Finder[F], path: str) -> dict[str, F]:
        """The findings of a kind among a module's own children, by their names."""
        found, names = self.found(kind), (name for name, _ in self.modules[path].named_children())
        return {name: found[f"{path}.{name}"] for name in names if f"{path}.{name}" in found}

    def once(self, key: Any, compute: Callable[[], R]) -> R:
        """Compute something once, for example for all modules that differ only in the values of their tensors."""
        if key not in self._known:
            self._known[key] = compute()
        result: R = self._known[key]
        return result

    @functools.cached_property
    def dtype(self) -> torch.dtype:
        """The dtype of the model's activations: that of its first floating-point matrix."""
        for parameter in self.model.parameters():
            if parameter.ndim >= 2 and parameter.dtype in agreement.TOLERANCES:
                return parameter.dtype
        return torch.float32

    @functools.cached_property
    def tables(self) -> dict[str, Tables]:
        """The modules that make cos and sin, by path."""
        tried = ((path, find_tables(path, module, self.dtype)) for path, module in self.modules.items())
        return {path: tables for path, tables in tried if tables is not None}

    def tables_of(self, path: str) -> Tables | None:
        """The tables that a module uses: those of the nearest enclosing module."""
        best = nearest(path, self.tables)
        return None if best is None else self.tables[best]
