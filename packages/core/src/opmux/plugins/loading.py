"""Loads every installed plugin once, and contains the failures of each. The first call of an op, or a command, does it.

Nothing is loaded at import. Code that must run once plugins are loaded (reading tuned records) subscribes here.
"""

import dataclasses
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

from opmux import policy
from opmux.callpath.op import OPS, drop_all_plans
from opmux.errors import PLUGIN_FAULTS
from opmux.log import logger
from opmux.plugins import discovery, failures
from opmux.plugins.failures import FailedPlugin
from opmux.plugins.reading import LoadedPlugin, read_plugin
from opmux.plugins.registration import Checkpoint, is_registered, register
from opmux.running import quarantine

__all__ = [
    "FailedPlugin",
    "LoadedPlugin",
    "ensure_loaded",
    "failed_plugins",
    "known_names",
    "load_plugin",
    "loaded_plugins",
    "subscribe",
    "temporary_plugin",
]

Listener = Callable[[Sequence[LoadedPlugin]], None]


class _Progress:
    """The state of loading."""

    done = False
    running = False


_lock = threading.RLock()
_loaded: dict[str, LoadedPlugin] = {}
_tried: set[tuple[str, str, str]] = set()
"""Entry points (name, distribution, value) that loaded or failed: not tried again after loading was interrupted."""
_listeners: list[Listener] = []


def subscribe(listener: Listener) -> None:
    """Have ``listener`` called with all loaded plugins, in order of name, whenever they change."""
    _listeners.append(listener)


def ensure_loaded() -> bool:
    """Load the installed plugins if they are not loaded yet; returns whether this call did so.

    After an interrupt from the keyboard, the next call continues with the plugin that was being loaded.
    """
    if _Progress.done:
        return False
    with _lock:
        if _Progress.done or _Progress.running:
            return False
        _Progress.running = True
        try:
            for entry_point, distribution, version in discovery.entry_points():
                tried = (entry_point.name, distribution, entry_point.value)
                if tried not in _tried and _key(entry_point.name, distribution) not in _loaded:
                    load_plugin(entry_point.name, entry_point.load, distribution, version)
                    _tried.add(tried)
            _tell_listeners()
            _Progress.done = True
        finally:
            _Progress.running = False
        _log_outcome()
    return True


def _tell_listeners() -> None:
    plugins = [_loaded[key] for key in sorted(_loaded)]
    for listener in _listeners:
        listener(plugins)


def _log_outcome() -> None:
    found = sorted({i.backend for op in OPS.values() for i in op.implementations})
    logger.info("backends: %s", ", ".join(found))
    for failure in failures.recorded():
        logger.warning("plugin %s (%s %s) %s", failure.name, failure.distribution, failure.version, failure.reason)
    if problem := policy.environment_problem():
        logger.error("%s", problem)
        return
    known = set(known_names())
    for name in (*policy.current().prefer, *(d.name for d in policy.current().disabled)):
        if name not in known:
            logger.warning("the environment's policy names backend `%s`, which is not registered", name)


def load_plugin(name: str, load: Callable[[], Any], distribution: str, version: str) -> LoadedPlugin | None:
    """Load one plugin, record its failure if it fails, and register what it brings. What it prints goes to stderr.

    Args:
        name: the entry point's name, which is the backend's.
        load: a callable that imports and returns the plugin (a module or an object with hooks).
        distribution: the package that brings it.
        version: the package's version.

    Returns:
        What was registered, or None if the plugin failed as a whole (see `failed_plugins`).

    Raises:
        KeyboardInterrupt: from the user; nothing of the plugin is registered then.
    """
    with _lock:
        before = Checkpoint.now()
        try:
            with redirect_stdout(sys.stderr):
                made = read_plugin(name, load(), distribution, version)
            made = dataclasses.replace(made, implementations=tuple(register(made)))
            _loaded[_key(name, distribution)] = made
        except PLUGIN_FAULTS as error:  # a plugin may raise anything; it must not take another one down
            before.restore_registrations()
            failures.record_exception(name, distribution, version, error)
            return None
        except BaseException:
            # Its ops stay: modules of it that were imported completely will not define them again.
            before.restore_registrations()
            raise
        return made


def _key(name: str, distribution: str) -> str:
    """Under which `_loaded` keeps a plugin."""
    return f"{name} {distribution}"


def loaded_plugins() -> tuple[LoadedPlugin, ...]:
    """What loaded, in order of name, with the implementations that are registered.

    An implementation that another package declared too is in neither plugin.
    """
    ensure_loaded()
    return tuple(
        dataclasses.replace(plugin, implementations=tuple(i for i in plugin.implementations if is_registered(i)))
        for plugin in (_loaded[key] for key in sorted(_loaded))
    )


def failed_plugins() -> tuple[FailedPlugin, ...]:
    """What did not load, and why."""
    ensure_loaded()
    return failures.recorded()


def known_names() -> Iterable[str]:
    """Every backend and every full name of an implementation that is registered."""
    ensure_loaded()
    for op in OPS.values():
        for implementation in op.implementations:
            yield implementation.backend
            yield implementation.full_name


@contextmanager
def temporary_plugin(
    plugin: Any, name: str, distribution: str = "a-test", version: str = "0"
) -> Iterator[LoadedPlugin | None]:
    """Load a plugin object for the length of a ``with`` block, then remove all it brought. For tests and experiments.

    Args:
        plugin: a module or object with hooks and ``OPMUX_API_VERSION``, or an Exception class or instance to be raised
            by loading it.
        name: the backend's name.
        distribution: the name of the package that brings it.
        version: the package's version.
    """
    ensure_loaded()

    def load() -> Any:
        if isinstance(plugin, BaseException) or (isinstance(plugin, type) and issubclass(plugin, BaseException)):
            raise plugin
        return plugin

    before = Checkpoint.now()
    concerns_records = False
    try:
        made = load_plugin(name, load, distribution, version)
        concerns_records = made is not None and bool(
            made.tuned_records or made.record_readers or made.ops or any(i.config_schema for i in made.implementations)
        )
        if concerns_records:
            _tell_listeners()
        yield made
    finally:
        with _lock:
            before.restore()
            quarantine.forget_backend(name)
            _loaded.pop(_key(name, distribution), None)
        if concerns_records:
            _tell_listeners()


policy.validate_with(known_names, lambda: OPS)
policy.subscribe(drop_all_plans)
