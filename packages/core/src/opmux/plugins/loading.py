"""Loads every installed plugin once, and contains the failures of each. The first call of an op, or a command, does it.

Nothing is loaded at import. Code that must run once plugins are loaded (reading tuned records) subscribes here. A
plugin's code runs outside of all locks: it may start threads that call ops.
"""

import dataclasses
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

from torch.utils._python_dispatch import _disable_current_modes

from opmux import policy
from opmux.callpath.op import OPS, drop_all_plans
from opmux.errors import PLUGIN_FAULTS
from opmux.log import announce_once, logger
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


WAIT_S = 5.0
"""How long a call waits for plugins that another thread is loading. Their modules import no toolchain, so loading takes
milliseconds; one that takes longer may itself wait for the thread that waits here."""


class _Progress:
    """The state of loading."""

    done = False
    thread: int | None = None
    """The thread that is loading."""


_turn = threading.Condition()
"""Notified when the thread that loads has ended, or was interrupted; no plugin's code runs while it is held."""
_lock = threading.RLock()
"""Held while what a plugin brought is registered or removed; no plugin's code runs meanwhile."""
_loaded: dict[str, LoadedPlugin] = {}
_tried: set[tuple[str, str, str]] = set()
"""Entry points (name, distribution, value) that loaded or failed: not tried again after loading was interrupted."""
_listeners: list[Listener] = []


def subscribe(listener: Listener) -> None:
    """Have ``listener`` called with all loaded plugins, in order of name, whenever they change."""
    _listeners.append(listener)


def ensure_loaded() -> bool:
    """Load the installed plugins if they are not loaded yet; returns whether this call did so.

    One thread loads, and others wait for it, at most `WAIT_S`. After an interrupt from the keyboard, the next call
    continues with the plugin that was being loaded.
    """
    if _Progress.done or not _is_this_threads_turn():
        return False
    try:
        with _disable_current_modes():  # the first call may be one that is traced: what loads is no part of its graph
            for entry_point, distribution, version in discovery.entry_points():
                tried = (entry_point.name, distribution, entry_point.value)
                if tried not in _tried and _key(entry_point.name, distribution) not in _loaded:
                    load_plugin(entry_point.name, entry_point.load, distribution, version)
                    _tried.add(tried)
            _tell_listeners()
        _Progress.done = True
    finally:
        with _turn:
            _Progress.thread = None
            _turn.notify_all()
    _log_outcome()
    return True


def _is_this_threads_turn() -> bool:
    """Whether this thread is to load the plugins; where another one is loading them, waits for it."""
    with _turn:
        if _Progress.thread == threading.get_ident():
            return False  # a plugin calls an op while it is loaded
        if not _turn.wait_for(lambda: _Progress.thread is None, WAIT_S):
            announce_once(
                "waiting for plugins",
                logging.WARNING,
                "plugins are still being loaded after %g s: this thread goes on with those loaded so far; a plugin "
                "must not wait, while it is loaded, for a thread that calls an op",
                WAIT_S,
            )
            return False
        if not _Progress.done:
            _Progress.thread = threading.get_ident()
        return not _Progress.done


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
    try:
        with redirect_stdout(sys.stderr):
            read = read_plugin(name, load(), distribution, version)
        return _registered(read)
    except PLUGIN_FAULTS as error:  # a plugin may raise anything; it must not take another one down
        failures.record_exception(name, distribution, version, error)
        return None


def _registered(read: LoadedPlugin) -> LoadedPlugin:
    """Register what a plugin brings: all of it, or, where this raises, nothing.

    The ops that it defined stay: modules of it that were imported completely will not define them again.

    Returns:
        The plugin with the implementations that were registered.
    """
    with _lock:
        before = Checkpoint.now()
        try:
            made = dataclasses.replace(read, implementations=tuple(register(read)))
            _loaded[_key(read.name, read.distribution)] = made
        except BaseException:
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
