"""Plugins, and parts of plugins, that did not load: recorded with the reason, never fatal."""

import traceback
from dataclasses import dataclass, field

from opmux.errors import PluginError


@dataclass(frozen=True)
class FailedPlugin:
    """A plugin, or a part of one, that did not load, and why."""

    name: str
    distribution: str
    version: str
    reason: str
    details: str = field(default="", repr=False)
    """The traceback, if an exception was the reason."""


_failed: list[FailedPlugin] = []


def recorded() -> tuple[FailedPlugin, ...]:
    """Every failure so far, in the order in which they happened."""
    return tuple(_failed)


def record(name: str, distribution: str, version: str, reason: str, details: str = "") -> None:
    """Record a failure."""
    _failed.append(FailedPlugin(name, distribution, version, reason, details))


def record_exception(name: str, distribution: str, version: str, error: BaseException) -> None:
    """Record the exception that is being handled as the failure of a whole plugin."""
    record(name, distribution, version, _reason(error), traceback.format_exc())


def go_back_to(earlier: tuple[FailedPlugin, ...]) -> None:
    """Forget what was recorded since `recorded` returned this."""
    _failed[:] = earlier


def _reason(error: BaseException) -> str:
    if isinstance(error, PluginError):
        return str(error)
    if isinstance(error, SystemExit):
        return f"SystemExit: {error}; a plugin must not exit while it is loaded"
    return f"{type(error).__name__}: {error}"
