"""Files of shapes: JSON, one object for each call. They are data: every value is checked, and nothing is evaluated."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from opmux.callpath.op import OPS, Op
from opmux.dtypes import SHORT_NAMES
from opmux.errors import InvalidArgument
from opmux.near import did_you_mean
from opmux.shapes.point import Point
from opmux.signatures.signature import Option
from opmux.signatures.validation import check_option

_FIELDS = {"op": str, "dtypes": dict, "dims": dict, "options": dict, "count": int}
_REQUIRED = ("op", "dtypes", "dims")
_LARGEST = 2**40
_EXAMPLE = '{"op": "rms_norm", "dtypes": {"x": "bf16", "weight": "bf16"}, "dims": {"tokens": 4096, "hidden": 8192}}'


def write_shapes(path: str | os.PathLike[str], points: Iterable[Point]) -> None:
    """Write points as a JSON list, one to a line; the file appears whole or not at all.

    Raises:
        OSError: where it cannot be written.
    """
    lines = ",\n".join(json.dumps(point.as_dict()) for point in points)
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.write_text(f"[\n{lines}\n]\n" if lines else "[]\n", encoding="utf-8")
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def read_shapes(path: str | os.PathLike[str]) -> list[Point]:
    """Read a file of shapes strictly; the ops of plugins must be loaded.

    Returns:
        The points, in the file's order.

    Raises:
        InvalidArgument: ``file:line: reason`` for the first object that is refused, and how many more are.
        OSError: where the file cannot be read.
    """
    file = Path(path)
    points: list[Point] = []
    refused: list[str] = []
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            f"{file}: expected a JSON file in UTF-8, got bytes that are not ({error.reason})"
        ) from None
    for line, value in _objects(file, text):
        try:
            points.append(point_of(value))
        except InvalidArgument as error:
            refused.append(f"{file}:{line}: {error}")
    if refused:
        more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
        raise InvalidArgument(f"{refused[0]}{more}")
    return points


def _objects(file: Path, text: str) -> Iterator[tuple[int, Any]]:
    """The elements of the list with the line on which each begins.

    Raises:
        InvalidArgument: where the text is not a JSON list.
    """
    decoder = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_once)
    place = _after_space(text, 0)
    if text[place : place + 1] != "[":
        raise _malformed(file, text, place, f"expected a JSON list of shapes, as [{_EXAMPLE}]")
    place = _after_space(text, place + 1)
    if text[place : place + 1] == "]":
        place += 1
    else:
        while True:
            try:
                value, end = decoder.raw_decode(text, place)
            except json.JSONDecodeError as error:
                raise _malformed(file, text, error.pos, f"malformed JSON: {error.msg}") from None
            except (ValueError, RecursionError) as error:
                raise _malformed(file, text, place, f"malformed JSON: {error}") from None
            yield text.count("\n", 0, place) + 1, value
            place = _after_space(text, end)
            mark, place = text[place : place + 1], _after_space(text, place + 1)
            if mark == "]":
                break
            if mark != ",":
                raise _malformed(file, text, end, "malformed JSON: expected ',' or ']' after a shape")
    if text[_after_space(text, place) :]:
        raise _malformed(file, text, place, "malformed JSON: expected nothing after the list")


def _after_space(text: str, place: int) -> int:
    while text[place : place + 1] in (" ", "\n", "\r", "\t"):
        place += 1
    return place


def _malformed(file: Path, text: str, place: int, reason: str) -> InvalidArgument:
    return InvalidArgument(f"{file}:{text.count(chr(10), 0, place) + 1}: {reason}")


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(n for n in names if names.count(n) > 1)!r} appears twice")
    return made


def _refused(op: str, field: str, expected: str, got: str, remedy: str) -> InvalidArgument:
    return InvalidArgument(f"{op}: `{field}` expected {expected}, got {got}; {remedy}")


def point_of(value: Any) -> Point:
    """One object as a point.

    Raises:
        InvalidArgument: where it is none, or the op would refuse the call.
    """
    if not isinstance(value, dict):
        raise InvalidArgument(f"expected an object, as {_EXAMPLE}, got {json.dumps(value)[:60]}")
    for name in value:
        if name not in _FIELDS:
            raise InvalidArgument(f"unknown field `{name}`; {did_you_mean(name, _FIELDS)}they are {', '.join(_FIELDS)}")
    for name in _REQUIRED:
        if name not in value:
            raise InvalidArgument(f"field `{name}` is missing; a shape is {_EXAMPLE}")
    for name, given in value.items():
        if not isinstance(given, _FIELDS[name]) or isinstance(given, bool):
            raise InvalidArgument(f"`{name}` expected {_WORDS[_FIELDS[name]]}, got {json.dumps(given)[:60]}")
    op = OPS.get(value["op"])
    if op is None:
        raise InvalidArgument(
            f"`op` expected the name of an op, got {value['op']!r}; {did_you_mean(value['op'], OPS)}see `opmux ops`"
        )
    count = value.get("count", 1)
    if count < 1:
        raise _refused(op.name, "count", "how often the call was made, 1 or more", str(count), "omit it")
    options, dtypes = _options(op, value.get("options", {})), _dtypes(op, value["dtypes"])
    made = Point(op.name, dtypes, _dims(op, value["dims"]), op.signature.settled(options, dtypes), count)
    try:
        made.check()
    except InvalidArgument:
        raise
    except (RuntimeError, TypeError, OverflowError, ValueError) as error:
        text = str(error).partition("\n")[0]
        raise _refused(op.name, "dims", "sizes of tensors that torch can hold", text, "correct them") from None
    return made


_WORDS = {str: "a string", dict: "an object", int: "a whole number"}


def _compare(op: Op, field: str, given: Mapping[str, Any], may: Iterable[str], must: Iterable[str]) -> None:
    known = list(may)
    for name in given:
        if name not in known:
            remedy = f"{did_you_mean(name, known)}they are {', '.join(known) or 'none'}"
            raise _refused(op.name, field, f"{field} of {op.name}", f"`{name}`", remedy)
    for name in must:
        if name not in given:
            raise _refused(op.name, field, f"a value for `{name}`", "none", "add it")


def _dtypes(op: Op, given: Mapping[str, Any]) -> dict[str, torch.dtype]:
    signature = op.signature
    _compare(op, "dtypes", given, [t.name for t in signature.tensors], [t.name for t in signature.required])
    return {name: _dtype(op, "dtypes", name, word) for name, word in given.items()}


def _dtype(op: Op, field: str, name: str, word: Any) -> torch.dtype:
    dtype = getattr(torch, SHORT_NAMES.get(word, word), None) if isinstance(word, str) else None
    if not isinstance(dtype, torch.dtype):
        raise _refused(op.name, field, f"a dtype for `{name}`, as bf16", json.dumps(word), "correct it")
    return dtype


def _dims(op: Op, given: Mapping[str, Any]) -> dict[str, int]:
    binders = list(op.signature.binders)
    _compare(op, "dims", given, binders, binders)
    for name, size in given.items():
        if isinstance(size, bool) or not isinstance(size, int) or not 0 < size <= _LARGEST:
            expected = f"a positive whole number for `{name}`"
            raise _refused(op.name, "dims", expected, json.dumps(size), "record a real call")
    return {name: given[name] for name in binders}


def _options(op: Op, given: Mapping[str, Any]) -> dict[str, Any]:
    options = {o.name: o for o in op.signature.options}
    _compare(op, "options", given, options, [o.name for o in options.values() if o.required])
    return {name: _option(op, options[name], value) for name, value in given.items()}


def _option(op: Op, option: Option, value: Any) -> Any:
    if option.kind == "dtype" and isinstance(value, str):
        value = _dtype(op, "options", option.name, value)
    return check_option(op.name, option, tuple(value) if isinstance(value, list) else value)
