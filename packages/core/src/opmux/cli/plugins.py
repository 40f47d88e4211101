"""Commands of plugins: added one by one, so that one that typer cannot take does not break the others."""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import typer

from opmux.plugins import loading

CORE_COMMANDS = frozenset({"doctor", "ops", "backends", "explain", "conformance", "bench", "demo", "tune"})
_NAME = re.compile(r"[a-z][a-z0-9-]*")


def commands_of_plugins() -> tuple[list[tuple[str, Callable[..., Any]]], list[loading.FailedPlugin]]:
    """The commands that can be added, by name, and those that cannot, each with the reason."""
    offered = [(plugin, command) for plugin in loading.loaded_plugins() for command in plugin.commands]
    names = Counter(command[0] for _, command in offered if _is_pair(command))
    good: list[tuple[str, Callable[..., Any]]] = []
    failed: list[loading.FailedPlugin] = []
    for plugin, command in offered:
        reason = _refusal(command, names)
        if reason is None:
            good.append(command)
        else:
            failed.append(loading.FailedPlugin(plugin.name, plugin.distribution, plugin.version, reason))
    return sorted(good, key=lambda command: command[0]), failed


def _is_pair(command: Any) -> bool:
    return isinstance(command, tuple) and len(command) == 2 and isinstance(command[0], str)


def _refusal(command: Any, names: Counter[str]) -> str | None:
    """Why a command cannot be added, or None."""
    if not _is_pair(command):
        return f"opmux_commands returned {command!r}, expected (name, function)"
    name, function = command
    if not _NAME.fullmatch(name):
        return f"command {name!r} expected a name of lower-case letters, digits and dashes"
    if name in CORE_COMMANDS:
        return f"command `{name}` is the core's own: rename it"
    if names[name] > 1:
        return f"command `{name}` is declared twice: neither is added"
    if not callable(function):
        return f"command `{name}` expected a function, got {function!r}"
    scratch = typer.Typer()
    try:
        scratch.command(name)(function)
        typer.main.get_command(scratch)
    except Exception as error:  # typer reads the plugin's annotations, and may raise anything
        return f"command `{name}` cannot be read by typer: {type(error).__name__}: {error}"
    return None
