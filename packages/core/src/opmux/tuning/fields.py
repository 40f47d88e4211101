"""The fields of a row: read from text, written as text."""

import json
import math
from collections.abc import Mapping
from typing import Any

import torch

from opmux.dtypes import SHORT_NAMES, short_name_of
from opmux.errors import InvalidArgument, TunedRecordError
from opmux.signatures.signature import Option
from opmux.signatures.validation import check_option


def refused(op: str, column: str, expected: str, got: str, remedy: str) -> TunedRecordError:
    """A `TunedRecordError` in the form that all have: op, column, expected, got, what to do."""
    return TunedRecordError(f"{op}: `{column}` expected {expected}, got {got}; {remedy}")


def as_text(value: Any) -> str:
    """A field as text; readers of other formats may yield numbers, lists and mappings."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, torch.dtype):
        return short_name_of(value)
    if isinstance(value, Mapping):
        return ";".join(f"{name}={'none' if item is None else as_text(item)}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return ",".join(as_text(item) for item in value)
    return repr(value)


def read_pairs(op: str, column: str, text: str, example: str) -> dict[str, str]:
    """``tokens=4096;hidden=8192`` -> names and words.

    Raises:
        TunedRecordError: if a part is not a pair, or a name appears twice.
    """
    pairs: dict[str, str] = {}
    for part in text.split(";") if text else []:
        name, equals, word = (piece.strip() for piece in part.partition("="))
        if not name or not equals or not word:
            raise refused(op, column, f"name=value pairs joined by `;`, as {example}", repr(text), "correct the row")
        if name in pairs:
            raise refused(op, column, f"each name once, as {example}", f"`{name}` twice", "drop one")
        pairs[name] = word
    return pairs


def read_number(op: str, column: str, text: str) -> float:
    """A finite number.

    Raises:
        TunedRecordError: if it is not one.
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise refused(op, column, "a finite number", repr(text), "measure again or drop the row")
    return number


def read_integer(op: str, column: str, text: str, of: str = "") -> int:
    """A whole number.

    Raises:
        TunedRecordError: if it is not one.
    """
    try:
        return int(text)
    except ValueError:
        name = f"a whole number for `{of}`" if of else "a whole number"
        raise refused(op, column, name, repr(text), "correct the row") from None


def read_dtype(op: str, column: str, name: str, text: str) -> torch.dtype:
    """A dtype by its short or its torch name.

    Raises:
        TunedRecordError: if torch has no dtype of that name.
    """
    dtype = getattr(torch, SHORT_NAMES.get(text, text), None)
    if isinstance(dtype, torch.dtype):
        return dtype
    raise refused(op, column, f"a dtype for `{name}`, as bf16 or float8_e4m3fn", repr(text), "correct the row")


def read_option(op: str, option: Option, text: str) -> Any:
    """An option's value: ``true``, ``-1,0``, ``tanh``, ``none``.

    Raises:
        TunedRecordError: if the option cannot have this value.
    """
    value: Any = text
    if text == "none" and option.nullable:
        return None
    try:
        match option.kind:
            case "bool":
                value = _truth(text)
            case "int":
                value = int(text)
            case "float":
                value = float(text)
            case "ints":
                value = tuple(int(part) for part in text.split(","))
            case "bools":
                value = tuple(_truth(part.strip()) for part in text.split(","))
            case "dtype":
                value = read_dtype(op, "options", option.name, text)
        return check_option(op, option, value)
    except InvalidArgument as error:
        expected = str(error).partition(" expected ")[2].partition(", got ")[0]
    except ValueError as error:
        if isinstance(error, TunedRecordError):
            raise
        expected = f"a value of kind {option.kind}"
    raise refused(op, "options", f"{expected} for `{option.name}`", repr(text), "correct the row")


def _truth(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


def read_config(op: str, value: Any) -> dict[str, Any] | None:
    """A JSON object; None if the field is empty.

    Raises:
        TunedRecordError: if it is malformed, is not an object, has a key twice, or contains NaN or infinity.
    """
    if isinstance(value, Mapping):
        value = write_config(op, value)
    text = as_text(value)
    if not text:
        return None
    try:
        config = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_once)
    except ValueError as error:
        expected = 'a JSON object, as {"block_m": 128}'
        raise refused(op, "config", expected, f"{text!r} ({error})", "correct the row; CSV doubles quotes") from None
    if not isinstance(config, dict):
        raise refused(op, "config", 'a JSON object, as {"block_m": 128}', repr(text), "correct the row")
    return config


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key appears twice")
    return made


def write_config(op: str, config: Mapping[str, Any]) -> str:
    """A config as JSON in one line.

    Raises:
        TunedRecordError: if JSON would not preserve it: tuples, keys that are not strings, NaN.
    """
    try:
        text = json.dumps(dict(config), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise refused(op, "config", "values that JSON can hold", f"{config!r} ({error})", "use plain values") from None
    if json.loads(text) != config:
        raise refused(op, "config", "values that JSON preserves", f"{config!r}", "use lists and string keys")
    return text
