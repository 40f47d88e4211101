"""Reading the arguments of the command line: ops by name, ``x=bf16[4096,8192]``, ``causal=true``, ``window=-1,0``."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from opmux.arch import Arch, fp8_dtype
from opmux.callpath.op import OPS, Op
from opmux.dtypes import SHORT_NAMES, name_of, short_name_of
from opmux.errors import InvalidArgument
from opmux.near import did_you_mean
from opmux.plugins import loading
from opmux.signatures.signature import Option, TensorArgument

_TENSOR = re.compile(r"(\w+)\[([\d,\s]*)\]")
_NONE = "none"


def find_op(command: str, name: str) -> Op:
    """An op by name.

    Raises:
        InvalidArgument: if there is none of that name.
    """
    loading.ensure_loaded()
    if name not in OPS:
        raise InvalidArgument(
            f"{command}: `op` expected the name of an op, got {name!r}; {did_you_mean(name, OPS)}see `opmux ops`"
        )
    return OPS[name]


def read_call(op: Op, words: Sequence[str], arch: Arch) -> dict[str, Any]:
    """Read ``name=value`` words into the op's arguments; tensors are made on the meta device.

    Args:
        op: the op that is called.
        words: one for each argument; arguments that are not given keep their defaults.
        arch: decides what ``fp8`` means.

    Raises:
        InvalidArgument: if a word names no argument of the op, repeats one, or has an invalid value, or if a required
            argument is missing.
    """
    readers: dict[str, Callable[[str], Any]] = {}
    for tensor in op.signature.tensors:
        readers[tensor.name] = _tensor_reader(op, tensor, arch)
    for option in op.signature.options:
        readers[option.name] = _option_reader(op, option, arch)
    given: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not value:
            raise InvalidArgument(
                f"explain: `{word}` expected name=value, as {example(op.signature.tensors[0])} or eps=1e-5; "
                f"the arguments of {op.name} are {', '.join(readers)}"
            )
        if name not in readers:
            raise InvalidArgument(
                f"explain: `{name}` expected an argument of {op.name} ({', '.join(readers)}), got {word!r}; "
                f"{did_you_mean(name, readers)}see `opmux ops`"
            )
        if name in given:
            raise InvalidArgument(f"explain: `{name}` expected one value, got a second one in {word!r}; drop one")
        given[name] = readers[name](value)
    _refuse_missing(op, given)
    return given


def example(tensor: TensorArgument) -> str:
    """An example of a word for a tensor, for messages."""
    dtypes = {name_of(d) for d in tensor.dtypes}
    short = next((s for s, long in SHORT_NAMES.items() if long in dtypes), next(iter(sorted(dtypes))))
    return f"{tensor.name}={short}[{','.join(word.lstrip('*') for word in tensor.shape.text.split())}]"


def _refuse_missing(op: Op, given: dict[str, Any]) -> None:
    missing = [example(t) for t in op.signature.required if t.name not in given]
    missing += [f"{o.name}=..." for o in op.signature.options if o.required and o.name not in given]
    if missing:
        raise InvalidArgument(
            f"explain: `{missing[0].partition('=')[0]}` of {op.name} expected a value, got none; "
            f"add {' '.join(missing)}, with numbers for the dims"
        )


def _tensor_reader(op: Op, tensor: TensorArgument, arch: Arch) -> Callable[[str], Tensor | None]:
    def read(text: str) -> Tensor | None:
        if tensor.optional and text.lower() == _NONE:
            return None
        match = _TENSOR.fullmatch(text.strip())
        sizes = [part.strip() for part in match[2].split(",")] if match and match[2].strip() else []
        if match is None or not all(size.isdigit() for size in sizes):
            raise InvalidArgument(
                f"explain: `{tensor.name}` of {op.name} expected DTYPE[SIZE,...], as {example(tensor)} with numbers "
                f"for the dims, got {text!r}; quote it where the shell reads brackets"
            )
        dtype = read_dtype("explain", tensor.name, match[1], arch)
        try:
            return torch.empty([int(size) for size in sizes], dtype=dtype, device="meta")
        except (RuntimeError, TypeError, OverflowError):
            raise InvalidArgument(
                f"explain: `{tensor.name}` of {op.name} expected sizes of a tensor that torch can hold, got {text!r}; "
                "make them smaller"
            ) from None

    return read


def read_dtype(command: str, argument: str, text: str, arch: Arch) -> torch.dtype:
    """A dtype by its short name, its torch name, or ``fp8``, the arch's own variant of e4m3.

    Raises:
        InvalidArgument: if the word is none of these.
    """
    if text == "fp8":
        return fp8_dtype(arch)
    dtype = getattr(torch, SHORT_NAMES.get(text, text), None)
    if not isinstance(dtype, torch.dtype):
        known = [*SHORT_NAMES, "fp8"]
        raise InvalidArgument(
            f"{command}: `{argument}` expected a dtype ({', '.join(known)}), got {text!r}; {did_you_mean(text, known)}"
            f"fp8 is {short_name_of(fp8_dtype(arch))} on {arch}"
        )
    return dtype


def read_device(command: str, name: str | None) -> torch.device | None:
    """A device by name; None stays None.

    Raises:
        InvalidArgument: if there is no such device here.
    """
    if name is None:
        return None
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    here = ["cpu", *(f"cuda:{index}" for index in range(count))]
    if device is None or device.type not in ("cpu", "cuda") or (device.type == "cuda" and (device.index or 0) >= count):
        raise InvalidArgument(
            f"{command}: `--device` expected one of {', '.join(here)}, got {name!r}; see `opmux doctor`"
        )
    return device


def _option_reader(op: Op, option: Option, arch: Arch) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if option.nullable and text.lower() == _NONE:
            return None
        if option.kind == "dtype":
            return read_dtype("explain", option.name, text, arch)
        try:
            return _PARSERS[option.kind](text)
        except ValueError:
            raise InvalidArgument(
                f"explain: `{option.name}` of {op.name} expected {_EXPECTED[option.kind]}, got {text!r}; "
                + ("it has no default" if option.required else f"the default is {option.default!r}")
            ) from None

    return read


def _truth(text: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUTHS:
        raise ValueError(text)
    return _TRUTHS[word]


def _several(parse: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    return lambda text: tuple(parse(part) for part in text.strip("()").split(",") if part.strip())


_TRUTHS = {"true": True, "false": False, "1": True, "0": False}
_PARSERS: dict[str, Callable[[str], Any]] = {
    "float": float,
    "int": int,
    "bool": _truth,
    "str": str,
    "ints": _several(int),
    "bools": _several(_truth),
}
_EXPECTED = {
    "float": "a number",
    "int": "a whole number",
    "bool": "true or false",
    "ints": "whole numbers with commas between, as -1,0",
    "bools": "true or false with commas between",
}
