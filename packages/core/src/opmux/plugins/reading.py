"""Reading a plugin: check its API version, call its hooks, check what they return. Registers nothing."""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from opmux import arch
from opmux.callpath.op import OPS, Op
from opmux.declared.caveats import Caveat
from opmux.declared.configs import check_schema
from opmux.declared.constraints import Constraint
from opmux.declared.features import FeatureRule
from opmux.declared.implementation import Implementation
from opmux.errors import PLUGIN_FAULTS, OpmuxError, PluginError
from opmux.near import did_you_mean

API_VERSION = 1
"""What a plugin's ``OPMUX_API_VERSION`` must equal."""

RESERVED = ("reference", "opmux")
"""The core's own backends: the references, and in-place ops computed by their functional form and a copy."""

_NAME = re.compile(r"[A-Za-z_]\w*")


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
    toolchains: tuple[Any, ...] = ()
    prebuilders: tuple[Any, ...] = ()


def read_plugin(name: str, plugin: Any, distribution: str, version: str) -> LoadedPlugin:
    """Call every hook of a plugin and exhaust what it yields.

    Args:
        name: the entry point's name, which is the backend's.
        plugin: the module, or an object with hooks.
        distribution: the package that brings it.
        version: the package's version.

    Returns:
        What the hooks returned; the implementations carry backend, distribution and version.

    Raises:
        PluginError: if the name, the API version, or the type of something returned is wrong.
    """
    # Imported here because `import opmux` needs neither.
    import pluggy

    from opmux.plugins import hookspecs

    if name in RESERVED or not _NAME.fullmatch(name):
        raise PluginError(
            f"is called {name!r}: a backend's name is a Python identifier, and not {' or '.join(RESERVED)}"
        )
    _check_api_version(getattr(plugin, "OPMUX_API_VERSION", None), distribution)
    # One manager per plugin: within one manager, a hook that raises aborts the hooks of all other plugins.
    manager = pluggy.PluginManager("opmux")
    manager.add_hookspecs(hookspecs)
    manager.register(plugin, name)
    manager.check_pending()

    def results(hook: str) -> tuple[Any, ...]:
        found: list[Any] = []
        for result in getattr(manager.hook, hook)():
            if not isinstance(result, Iterable) or isinstance(result, (str, Mapping)):
                raise PluginError(f"{hook} returned {result!r}, expected a list (or yield what belongs in it)")
            found += result
        return tuple(found)

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
        results("opmux_toolchains"),
        results("opmux_prebuilders"),
    )


def _check_api_version(spoken: Any, distribution: str) -> None:
    if spoken is None:
        raise PluginError(f"declares no OPMUX_API_VERSION, this core speaks {API_VERSION}: add it to the plugin module")
    if not isinstance(spoken, int):
        raise PluginError(f"OPMUX_API_VERSION is {spoken!r}, expected an int: write OPMUX_API_VERSION = {API_VERSION}")
    if spoken != API_VERSION:
        upgrade = distribution if spoken < API_VERSION else "opmux"
        raise PluginError(f"API version {spoken}, this core speaks {API_VERSION}: pip install -U {upgrade}")


def check_implementation(implementation: Implementation) -> Op:
    """Check one implementation against the ops.

    Returns:
        The op that it implements.

    Raises:
        PluginError: unknown op, a field of the wrong type, a constraint or feature that is none or is on an
            argument that does not exist, a caveat that the op does not allow, an arch pattern that matches no known
            arch, a target or config that is neither ``"module:function"`` nor callable.
    """
    op = OPS.get(implementation.op)
    if op is None:
        raise PluginError(
            f"implements `{implementation.op}`, which is not an op of this core: {did_you_mean(implementation.op, OPS)}"
            "if a newer core has it, pip install -U opmux"
        )
    who = f"{implementation.full_name} of {op.name}"
    _check_fields(implementation, who)
    for caveat in implementation.caveats:
        if not isinstance(caveat, Caveat):
            raise PluginError(f"{who}: caveat {caveat!r} is not a Caveat, as Caveat.MASKED_NONFINITE")
        if caveat not in op.caveats:
            raise PluginError(f"{who}: caveat {caveat.name} ({caveat}) is not one that {op.name} allows")
    for pair in implementation.tiles:
        name, block = pair if isinstance(pair, tuple) and len(pair) == 2 else (None, None)
        if name not in op.signature.binders or not isinstance(block, (str, int)):
            known = ", ".join(op.signature.binders)
            raise PluginError(f"{who}: tiles {pair!r} is not (dim, parameter of the config); its dims are {known}")
    for field_name in ("space", "scores"):
        if getattr(implementation, field_name) is not None and implementation.config is None:
            without = "a target that takes no config has no " + field_name
            raise PluginError(f"{who}: {field_name}= without config=: {without} of them")
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
    except PLUGIN_FAULTS as error:  # a constraint or feature may be a plugin's own class
        raise PluginError(f"{who}: {type(error).__name__}: {error}") from error
    return op


def _check_fields(implementation: Implementation, who: str) -> None:
    """Check what can be said of a record without its op: the types of its fields."""
    if not isinstance(implementation.name, str) or not re.fullmatch(r"[\w.-]*", implementation.name):
        raise PluginError(f"{who}: name {implementation.name!r} is not a word of letters, digits, `_`, `-` and `.`")
    if not isinstance(implementation.priority, int):
        raise PluginError(f"{who}: priority {implementation.priority!r} is not an int, as Priority.PORTABLE")
    for field_name in ("archs", "when", "features", "requires", "caveats", "tiles"):
        if not isinstance(getattr(implementation, field_name), tuple):
            raise PluginError(f"{who}: {field_name}= is not a tuple: write {field_name}=(..., )")
    for field_name in ("capturable", "deterministic", "takes_out"):
        if not isinstance(value := getattr(implementation, field_name), bool):
            raise PluginError(f"{who}: {field_name} {value!r} is not True or False")
    if implementation.numerics is not None and not isinstance(implementation.numerics, str):
        raise PluginError(f"{who}: numerics {implementation.numerics!r} is not a str that says how they differ")
    for constraint in implementation.when:
        if not isinstance(constraint, Constraint):
            raise PluginError(f"{who}: when= has {constraint!r}, which is not a constraint, as MultipleOf('hidden', 8)")
    for rule in implementation.features:
        if not isinstance(rule, FeatureRule):
            raise PluginError(f"{who}: features= has {rule!r}, which is not a feature rule, as Exact('hidden')")
    for field_name in ("target", "config", "space", "kernels", "scores"):
        value = getattr(implementation, field_name)
        if not (callable(value) or (isinstance(value, str) and value.count(":") == 1)) and value is not None:
            raise PluginError(f"{who}: {field_name} {value!r} is neither 'module:function' nor callable")
    if implementation.target is None:
        raise PluginError(f"{who}: target is None, expected 'module:function' or a callable")
