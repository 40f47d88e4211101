"""Plugins: found by entry point, loaded one by one behind a guard, checked, registered; failures are recorded.

Nothing is loaded at import. The first call of an op, or a command, loads everything once.
"""

import dataclasses
import importlib.metadata
import os
import re
import threading
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from opmux import arch, policy
from opmux.callpath.op import OPS, Op, drop_all_plans
from opmux.declared.configs import check_schema
from opmux.declared.implementation import Implementation
from opmux.errors import OpmuxError, PluginError
from opmux.log import logger
from opmux.running import faults

API_VERSION = 1
"""What a plugin's ``OPMUX_API_VERSION`` must equal."""

ENTRY_POINT_GROUP = "opmux.backends"
RESERVED = ("reference", "opmux")
"""The core's own backends."""
_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class FailedPlugin:
    """A plugin, or a part of one, that did not load, and why."""

    name: str
    distribution: str
    version: str
    reason: str
    details: str = field(default="", repr=False)
    """The traceback, where an exception was the reason."""


@dataclass(frozen=True)
class LoadedPlugin:
    """A plugin that loaded, and what it brought."""

    name: str
    distribution: str
    version: str
    implementations: tuple[Implementation, ...] = ()
    ops: tuple[str, ...] = ()
    commands: tuple[tuple[str, Any], ...] = ()
    tuned_records: tuple[str, ...] = ()
    record_readers: tuple[tuple[str, Any], ...] = ()


_lock = threading.RLock()
_loaded: dict[str, LoadedPlugin] = {}
_failed: list[FailedPlugin] = []
_refused: set[tuple[str, str]] = set()
"""(op, full name) that two declared: a third does not get it either."""
_state = {"done": False, "running": False}


def ensure_loaded() -> bool:
    """Load the installed plugins unless that is done; returns whether this call did it."""
    if _state["done"]:
        return False
    with _lock:
        if _state["done"] or _state["running"]:
            return False
        _state["running"] = True
        try:
            for name, entry_point in _entry_points():
                distribution = entry_point.dist.name if entry_point.dist else "?"
                version = entry_point.dist.version if entry_point.dist else "?"
                load_plugin(name, entry_point.load, distribution, version)
            _install_tuned_records()
        finally:
            _state.update(done=True, running=False)
        found = sorted({i.backend for op in OPS.values() for i in op.implementations})
        logger.info("backends: %s", ", ".join(found))
        for failure in _failed:
            logger.warning("plugin %s (%s %s) %s", failure.name, failure.distribution, failure.version, failure.reason)
        if problem := policy.environment_problem():
            logger.error("%s", problem)
            return True
        named = (*policy.current().prefer, *(d.name for d in policy.current().disabled))
        for name in named:
            if name not in set(known_names()):
                logger.warning("the environment's policy names backend `%s`, which is not registered", name)
    return True


def _install_tuned_records() -> None:
    """Put in force the records that plugins, the user and the environment bring; ops that have some are rewritten."""
    from opmux import tuning  # it builds on the ops and the resolver, which build on what is above

    tuning.install([_loaded[key] for key in sorted(_loaded)])


def _entry_points() -> list[tuple[str, importlib.metadata.EntryPoint]]:
    """Installed entry points, sorted, so that nothing depends on the order of installation."""
    allowed = policy.split_names(os.environ.get("OPMUX_PLUGINS")) if "OPMUX_PLUGINS" in os.environ else None
    found = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
    named = [(e.name, e) for e in found if allowed is None or e.name in allowed]
    return sorted(named, key=lambda pair: (pair[0], pair[1].dist.name if pair[1].dist else "", pair[1].value))


def load_plugin(name: str, load: Any, distribution: str, version: str) -> LoadedPlugin | None:
    """Load one plugin behind a guard and register what it brings.

    Args:
        name: the entry point's name, which is the backend's.
        load: a callable that imports and returns the plugin (a module or an object with hooks).
        distribution: the package that brings it.
        version: the package's version.

    Returns:
        What was registered, or None where the plugin failed as a whole (see `failed_plugins`).
    """
    with _lock:
        try:
            plugin = load()
            made = _read_plugin(name, plugin, distribution, version)
            accepted = _register(made)
        except Exception as error:  # a plugin may raise anything; it must not take another one down
            _fail(name, distribution, version, _say(error), traceback.format_exc())
            return None
        made = dataclasses.replace(made, implementations=tuple(accepted))
        _loaded[f"{name} {distribution}"] = made
        return made


def _say(error: Exception) -> str:
    return str(error) if isinstance(error, PluginError) else f"{type(error).__name__}: {error}"


def _fail(name: str, distribution: str, version: str, reason: str, details: str = "") -> None:
    _failed.append(FailedPlugin(name, distribution, version, reason, details))


def _read_plugin(name: str, plugin: Any, distribution: str, version: str) -> LoadedPlugin:
    """Check the API version, call the hooks, exhaust what they yield."""
    import pluggy

    from opmux.plugins import hookspecs

    if name in RESERVED or not _NAME.fullmatch(name):
        raise PluginError(
            f"is called {name!r}: a backend's name is a Python identifier, and not {' or '.join(RESERVED)}"
        )
    spoken = getattr(plugin, "OPMUX_API_VERSION", None)
    if spoken is None:
        raise PluginError(f"declares no OPMUX_API_VERSION, this core speaks {API_VERSION}: add it to the plugin module")
    if spoken != API_VERSION:
        upgrade = distribution if isinstance(spoken, int) and spoken < API_VERSION else "opmux"
        raise PluginError(f"API version {spoken}, this core speaks {API_VERSION}: pip install -U {upgrade}")
    # One manager per plugin: a hook that raises aborts every other one in the same manager's call.
    manager = pluggy.PluginManager("opmux")
    manager.add_hookspecs(hookspecs)
    manager.register(plugin, name)
    manager.check_pending()

    def results(hook: str) -> tuple[Any, ...]:
        return tuple(item for result in getattr(manager.hook, hook)() for item in result)

    ops = results("opmux_ops")
    for function in ops:
        if not isinstance(getattr(function, "op", None), Op):
            raise PluginError(f"opmux_ops returned {function!r}, which define_op did not make")
    implementations = results("opmux_implementations")
    for implementation in implementations:
        if not isinstance(implementation, Implementation):
            raise PluginError(f"opmux_implementations yielded {implementation!r}, expected an Implementation")
    return LoadedPlugin(
        name,
        distribution,
        version,
        tuple(
            dataclasses.replace(i, backend=name, distribution=distribution, version=version) for i in implementations
        ),
        tuple(function.op.name for function in ops),
        results("opmux_commands"),
        results("opmux_tuned_records"),
        results("opmux_record_readers"),
    )


def check_implementation(implementation: Implementation) -> Op:
    """Check one record against the ops.

    Returns:
        The op that it implements.

    Raises:
        PluginError: unknown op, a constraint or feature on an argument that does not exist, a bad arch pattern, a
            target that is neither ``"module:function"`` nor callable.
    """
    op = OPS.get(implementation.op)
    if op is None:
        raise PluginError(f"implements `{implementation.op}`, which is no op of this core: pip install -U opmux")
    who = f"{implementation.full_name} of {op.name}"
    if not isinstance(implementation.priority, int):
        raise PluginError(f"{who}: priority {implementation.priority!r} is not an int, as Priority.PORTABLE")
    for field_name in ("archs", "when", "features", "requires"):
        if not isinstance(getattr(implementation, field_name), tuple):
            raise PluginError(f"{who}: {field_name}= is not a tuple: write {field_name}=(..., )")
    for target in (implementation.target, implementation.config):
        if not (callable(target) or (isinstance(target, str) and target.count(":") == 1)) and target is not None:
            raise PluginError(f"{who}: target {target!r} is neither 'module:function' nor callable")
    if implementation.target is None:
        raise PluginError(f"{who}: target is None, expected 'module:function' or a callable")
    try:
        check_schema(implementation)
        for feature in implementation.key_features(op.signature):
            compile(feature.source, f"<{who}>", "eval")
        for pattern in implementation.archs:
            arch.check_pattern(pattern)
    except OpmuxError as error:
        raise PluginError(f"{who}: {error}") from None
    except SyntaxError:
        raise PluginError(f"{who}: feature {feature.label!r} cannot be written into a key") from None
    return op


def _register(made: LoadedPlugin) -> list[Implementation]:
    """Register record by record; of two with one name neither stays, and both packages are told."""
    accepted: dict[str, list[Implementation]] = {}
    for new in made.implementations:
        try:
            op = check_implementation(new)
        except PluginError as error:
            _fail(made.name, made.distribution, made.version, str(error))
            continue
        added = accepted.setdefault(op.name, [])
        clash = next((i for i in (*op.implementations, *added) if i.full_name == new.full_name), None)
        if clash is not None or (op.name, new.full_name) in _refused:
            _refused.add((op.name, new.full_name))
            packages = {(made.name, made.distribution, made.version)}
            if clash is not None:
                packages.add((clash.backend, clash.distribution, clash.version))
            names = " and ".join(sorted(f"{d} {v}" for _, d, v in packages))
            for name, distribution, version in sorted(packages):
                reason = f"{new.full_name} of {op.name} is declared twice, by {names}: neither is loaded"
                _fail(name, distribution, version, reason)
            accepted[op.name] = [i for i in added if i is not clash]
            if clash is not None and clash in op.implementations:
                op.set_implementations(tuple(i for i in op.implementations if i is not clash))
            continue
        added.append(new)
    for name, added in accepted.items():
        if added:
            OPS[name].set_implementations((*OPS[name].implementations, *added))
    return [implementation for added in accepted.values() for implementation in added]


def loaded_plugins() -> tuple[LoadedPlugin, ...]:
    """What loaded, in order of name."""
    ensure_loaded()
    return tuple(_loaded[key] for key in sorted(_loaded))


def failed_plugins() -> tuple[FailedPlugin, ...]:
    """What did not load, and why."""
    ensure_loaded()
    return tuple(_failed)


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
    """Load a plugin object for a while; at the end everything it brought is gone. For tests and experiments.

    Args:
        plugin: a module or object with hooks and ``OPMUX_API_VERSION``, or an Exception class or instance that
            loading it shall raise.
        name: the backend's name.
    """
    ensure_loaded()

    def load() -> Any:
        if isinstance(plugin, BaseException) or (isinstance(plugin, type) and issubclass(plugin, BaseException)):
            raise plugin
        return plugin

    ops_before = set(OPS)
    implementations_before = {op.name: op.implementations for op in OPS.values()}
    failed_before, refused_before = list(_failed), set(_refused)
    rewrites_records = False
    try:
        made = load_plugin(name, load, distribution, version)
        rewrites_records = made is not None and bool(made.tuned_records or made.record_readers or made.ops)
        if rewrites_records:
            _install_tuned_records()
        yield made
    finally:
        with _lock:
            for added in set(OPS) - ops_before:
                del OPS[added]
            for op_name, implementations in implementations_before.items():
                if OPS[op_name].implementations != implementations:
                    OPS[op_name].set_implementations(implementations)
            _failed[:] = failed_before
            _refused.intersection_update(refused_before)
            faults.forget_backend(name)
            _loaded.pop(f"{name} {distribution}", None)
        if rewrites_records:
            _install_tuned_records()


policy.validate_with(known_names, lambda: OPS)
policy.subscribe(drop_all_plans)
