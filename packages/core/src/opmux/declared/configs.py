"""Configs: the tunable parameters of an implementation, held to the schema that its record declares.

A schema is a dataclass: its fields name the parameters and give their types, its ``__post_init__`` may raise
`ValueError` with the reason why values do not fit together. It is imported when a config is first checked, so its
module must import no toolchain.
"""

import dataclasses
import importlib
import types
import typing
from collections.abc import Mapping
from typing import Any

from opmux.declared.implementation import Implementation
from opmux.errors import PLUGIN_FAULTS, PluginError


def schema_of(implementation: Implementation) -> type | None:
    """The dataclass that an implementation's configs are made of, or None where it declares none.

    Raises:
        ValueError: where ``config_schema`` cannot be imported or is not a dataclass; the message is the reason.
    """
    declared = implementation.config_schema
    if declared is None:
        return None
    schema: Any = declared
    if isinstance(declared, str):
        module, _, name = declared.partition(":")
        try:
            schema = getattr(importlib.import_module(module), name)
        except PLUGIN_FAULTS as error:  # a plugin's module may raise anything
            raise ValueError(f"config_schema {declared!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not (isinstance(schema, type) and dataclasses.is_dataclass(schema)):
        raise ValueError(f"config_schema {declared!r} is not a dataclass")
    return schema


def check_schema(implementation: Implementation) -> None:
    """Hold a record's ``config_schema`` to its form, importing nothing.

    Raises:
        PluginError: where it is neither a dataclass nor ``"module:Name"``, or the record has no ``config``.
    """
    declared = implementation.config_schema
    if declared is None:
        return
    named = isinstance(declared, str) and declared.count(":") == 1
    if not named and not (isinstance(declared, type) and dataclasses.is_dataclass(declared)):
        raise PluginError(f"config_schema {declared!r} is neither 'module:Name' nor a dataclass")
    if implementation.config is None:
        raise PluginError("config_schema= is given without config=: a target that takes no config needs no schema")


def check_config(implementation: Implementation, config: Mapping[str, Any]) -> str | None:
    """Why an implementation cannot run with a config, or None: unknown, missing or ill-typed parameters, bad values.

    Args:
        implementation: whose ``config_schema`` counts; without one every config passes.
        config: the parameters by name, as a tuned record has them.
    """
    try:
        make_config(implementation, config)
    except ValueError as error:
        return str(error)
    return None


def make_config(implementation: Implementation, config: Any) -> Any:
    """A config as the target gets it: an instance of the schema where one is declared, else what was given.

    Args:
        implementation: whose config it is.
        config: the parameters by name, or an instance of the schema.

    Raises:
        ValueError: where the config does not fit the schema, or is neither a mapping nor a dataclass; the message is
            the reason.
    """
    schema = schema_of(implementation)
    if schema is None and not (config is None or isinstance(config, Mapping) or dataclasses.is_dataclass(config)):
        raise ValueError(f"config expected a dict of parameters by name, got {config!r}")
    if schema is None or isinstance(config, schema):
        return config
    return _made(schema, config, "")


def as_mapping(config: Any) -> dict[str, Any] | None:
    """A config as plain data: its parameters by name."""
    if config is None:
        return None
    return dataclasses.asdict(config) if dataclasses.is_dataclass(config) else dict(config)  # type: ignore[arg-type]


def fields_text(config: Mapping[str, Any]) -> str:
    """The fields of a config with their values; those of a config within it are in brackets."""
    shown = {name: f"({fields_text(value)})" if isinstance(value, Mapping) else value for name, value in config.items()}
    return ", ".join(f"{name} {value}" for name, value in shown.items())


def _made(schema: type[Any], given: Any, path: str) -> Any:
    if not isinstance(given, Mapping):
        raise ValueError(f"{path or 'config'} expected {schema.__name__}, got {given!r}")
    prefix = f"{path}." if path else ""
    fields = {f.name: f for f in dataclasses.fields(schema) if f.init}
    unknown = [name for name in given if name not in fields]
    if unknown:
        raise ValueError(f"{prefix}{unknown[0]} is not a parameter of {schema.__name__}; it has {', '.join(fields)}")
    none = dataclasses.MISSING
    for name, field in fields.items():
        if name not in given and field.default is none and field.default_factory is none:
            raise ValueError(f"{prefix}{name} is missing")
    try:
        hints = typing.get_type_hints(schema)
    except PLUGIN_FAULTS as error:  # annotations are a plugin's code too: a name may be imported for type checkers only
        raise ValueError(f"the types of {schema.__name__} cannot be read: {type(error).__name__}: {error}") from error
    values = {name: _value(hints[name], value, prefix + name) for name, value in given.items()}
    try:
        return schema(**values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}" if path else str(error)) from None
    except PLUGIN_FAULTS as error:  # ``__post_init__`` is a plugin's code
        raise ValueError(f"{schema.__name__} raised {type(error).__name__}: {error}") from error


def _value(wanted: Any, value: Any, name: str) -> Any:
    """A value held to an annotation, element by element; JSON's lists become the tuples that are wanted.

    Raises:
        ValueError: where it is of another type.
    """
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is not None and not arguments and not isinstance(wanted, types.GenericAlias):
        wanted, origin = origin, None  # `typing.List` and the like without arguments: any elements
    if origin in (typing.Union, types.UnionType):
        for one in arguments:
            try:
                return _value(one, value, name)
            except ValueError:
                continue
    elif origin is typing.Literal:
        if any(value == one and type(value) is type(one) for one in arguments):
            return value
        raise ValueError(f"{name} expected {' or '.join(map(repr, arguments))}, got {value!r}")
    elif origin in (tuple, list) and isinstance(value, (tuple, list)):
        repeated = origin is list or arguments[1:] == (Ellipsis,)
        each = arguments[:1] * len(value) if repeated else arguments
        if len(each) == len(value):
            made = (_value(one, item, f"{name}[{i}]") for i, (one, item) in enumerate(zip(each, value, strict=True)))
            return origin(made)
    elif origin is dict and isinstance(value, Mapping):
        keyed, held = arguments
        return {_value(keyed, key, f"a key of {name}"): _value(held, value[key], f"{name}[{key!r}]") for key in value}
    elif dataclasses.is_dataclass(wanted) and isinstance(wanted, type):
        return value if isinstance(value, wanted) else _made(wanted, value, name)
    elif wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    elif wanted is Any or (wanted is None and value is None):
        return value
    else:
        kind = origin or wanted
        if isinstance(kind, type) and isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
    raise ValueError(f"{name} expected {_named(wanted)}, got {value!r}")


def _named(wanted: Any) -> str:
    return wanted.__name__ if isinstance(wanted, type) and not typing.get_args(wanted) else str(wanted)
