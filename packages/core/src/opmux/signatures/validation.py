"""Validation that explains: checks every rule of a signature in turn and reports the first broken one in full.

The call path runs the same rules as straight-line code (`codegen`). It comes here when one of them fails, and on a
plan's first call. The fake functions use this validation too, so dims may be symbolic.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from opmux.dtypes import accumulation_dtype, name_of
from opmux.errors import invalid
from opmux.signatures import memory
from opmux.signatures.dims import Affine
from opmux.signatures.expressions import evaluate
from opmux.signatures.output_dtypes import Chosen
from opmux.signatures.signature import Option, Signature, TensorArgument

_CODES = ("Fp8", "Quantized")
"""The dtype groups of tensors whose values mean nothing without scales."""


def check_call(
    signature: Signature, tensors: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Check a whole call.

    Args:
        signature: the op's signature.
        tensors: every tensor argument by name, None for an absent optional one.
        options: every option by name.

    Returns:
        The bound dims (a star dim is bound to a tuple) and the options, normalised (lists become tuples).

    Raises:
        InvalidArgument: names the op, the argument, what was expected, what was given and what to do.
    """
    normalised = {
        option.name: check_option(signature.name, option, options[option.name]) for option in signature.options
    }
    for argument in signature.tensors:
        _check_tensor(signature.name, argument, tensors[argument.name])
    _check_agreement(signature, tensors)
    for rule in signature.chosen:
        dtype = tensors[rule.argument].dtype
        normalised[rule.option] = _check_chosen(signature.name, rule, normalised[rule.option], dtype)
    if "output_mask" in normalised:
        normalised["output_mask"] = _without_absent(signature, tensors, normalised["output_mask"])
    dims = bind_dims(signature, tensors, normalised)
    _check_requirements(signature, tensors, dims, normalised)
    return dims, normalised


def check_option(op: str, option: Option, value: Any) -> Any:
    """Check one option's value and return it normalised.

    Raises:
        InvalidArgument: where the value has the wrong kind or length, or is none of the choices.
    """
    if value is None and option.nullable:
        return None
    expected = _EXPECTED[option.kind] + (" or None" if option.nullable else "")
    remedy = f"pass {option.name}=..." if option.required else f"the default is {option.default!r}"
    good = value
    match option.kind:
        case "float":
            ok = isinstance(value, (int, float)) and not isinstance(value, bool)
            good = float(value) if ok else value
        case "int":
            ok = isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)
        case "bool":
            ok = isinstance(value, bool)
        case "dtype":
            ok = isinstance(value, torch.dtype) and (not option.dtypes or value in option.dtypes)
            if option.dtypes:
                expected += f" of {option.group} ({', '.join(sorted(name_of(d) for d in option.dtypes))})"
        case "str":
            ok = isinstance(value, str) and (not option.choices or value in option.choices)
            if option.choices:
                expected = " or ".join(repr(c) for c in option.choices)
        case _:
            element = bool if option.kind == "bools" else (int, torch.SymInt)
            ok = isinstance(value, (tuple, list)) and all(isinstance(v, element) for v in value)
            good = tuple(value) if ok else value
            if option.length is not None:
                expected = f"{option.length} {expected.removeprefix('a tuple of ')}"
                ok = ok and len(value) == option.length
    if not ok:
        raise invalid(op, option.name, expected, f"{value!r} ({type(value).__name__})", remedy)
    return good


def _check_chosen(op: str, rule: Chosen, asked: torch.dtype | None, dtype: torch.dtype) -> torch.dtype | None:
    """Check the dtype that an option chooses for an output; returns None for that of the argument."""
    allowed = dict.fromkeys((None, dtype, accumulation_dtype(dtype)))
    if asked not in allowed:
        *most, last = map(str, allowed)
        raise invalid(
            op,
            rule.option,
            f"{', '.join(most)} or {last}, as `{rule.argument}` is {name_of(dtype)}",
            str(asked),
            f"omit it and convert the result with .to({asked})",
        )
    return None if asked is dtype else asked


def _without_absent(signature: Signature, tensors: Mapping[str, Any], mask: tuple[bool, ...]) -> tuple[bool, ...]:
    """The gradients that are wanted; an absent argument has none."""
    absent = {f"grad_{name}" for name, tensor in tensors.items() if tensor is None}
    return tuple(want and o.name not in absent for want, o in zip(mask, signature.outputs, strict=True))


_EXPECTED = {
    "float": "a float",
    "int": "an int",
    "bool": "a bool",
    "str": "a str",
    "dtype": "a torch.dtype",
    "ints": "a tuple of ints",
    "bools": "a tuple of bools",
}


def describe(tensor: Any) -> str:
    """``float32[4, 8]`` for a tensor; the type's name for anything else but None."""
    if not isinstance(tensor, Tensor):
        kind = type(tensor).__name__
        return "None" if tensor is None else f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"
    return f"{name_of(tensor.dtype)}[{', '.join(str(s) for s in tensor.shape)}]"


def describe_call(signature: Signature, tensors: Sequence[Any], options: Mapping[str, Any]) -> str:
    """``x bfloat16[64, 7000], weight bfloat16[7000], eps=1e-06``: tensors, then the options that are not defaults."""
    parts = [
        f"{argument.name} {describe(value)}"
        for argument, value in zip(signature.tensors, tensors, strict=False)
        if isinstance(value, Tensor)
    ]
    parts += [f"{o.name}={options[o.name]!r}" for o in signature.options if options.get(o.name, o.default) != o.default]
    return ", ".join(parts)


def _check_tensor(op: str, argument: TensorArgument, value: Any) -> None:
    if value is None and argument.optional:
        return
    if not isinstance(value, Tensor):
        expected = "a torch.Tensor" + (" or None" if argument.optional else "")
        raise invalid(op, argument.name, expected, describe(value), "convert it with torch.as_tensor")
    if value.layout != torch.strided or value.is_nested:
        layout = "a nested tensor" if value.is_nested else f"layout {value.layout}"
        remedy = "pass its values and offsets to a varlen op" if value.is_nested else "call .to_dense() on it first"
        raise invalid(op, argument.name, "a strided tensor", layout, remedy)
    if value.dtype not in argument.dtypes:
        names = sorted(name_of(d) for d in argument.dtypes)
        expected = f"dtype {names[0]}" if len(names) == 1 else f"a dtype of {argument.group} ({', '.join(names)})"
        raise invalid(op, argument.name, expected, name_of(value.dtype), _remedy(argument, value.dtype, names[0]))
    rank, given = len(argument.shape.dims), value.dim()
    if given < rank or (argument.shape.star is None and given != rank):
        least = "at least " if argument.shape.star else ""
        raise invalid(
            op,
            argument.name,
            f"{least}rank {rank} ({argument.shape.text})",
            f"rank {given}, shape {list(value.shape)}",
            "reshape it",
        )


def _remedy(argument: TensorArgument, given: torch.dtype, first: str) -> str:
    """What to do about a dtype that an argument does not take: codes are made with their scales, never by a cast.

    Packed scales are bytes of exponents, four in an integer: a cast would take the integer for the scale.
    """
    if given is torch.int32 and torch.float32 in argument.dtypes and argument.name.endswith("scale"):
        return "unpack it with opmux.unpack_scale"
    if argument.name == "packed" and given.is_floating_point:
        return "make it of scales with opmux.pack_scale"
    if argument.group not in _CODES or not (given.is_floating_point or given is torch.int8):
        return f"cast it with .to(torch.{first})"
    return "make codes and scales with opmux.quantize" if given.itemsize > 1 else "quantize the values in one of these"


def _remedy_of_two(signature: Signature, source: str, name: str, tensors: Mapping[str, Any]) -> str:
    """What to do about two tensors whose dtypes must be equal."""
    leader, given = tensors[source].dtype, tensors[name].dtype
    if leader.itemsize != given.itemsize and 1 in (leader.itemsize, given.itemsize):
        first = signature.tensors[0].name
        stored = " and ".join(f"`{n}`" for n in signature.scales if n != first)
        if stored and tensors[first].dtype.itemsize == 1:
            return f"pass `{first}` unquantised, or codes with their scales in {stored}: a cast does not make them"
        if stored:
            return f"pass codes with their scales in {stored}, or in none of them: a cast does not make them"
    if leader.itemsize > 1 or given.itemsize > 1:
        return f"cast one of them with .to(torch.{name_of(leader)})"
    if torch.int8 in (leader, given):
        return "quantize both in one dtype"
    return "convert one of them, and its scales, with opmux.convert_fp8"


def _check_agreement(signature: Signature, tensors: Mapping[str, Any]) -> None:
    """Check that devices agree, and the dtypes that must be equal."""
    first = signature.tensors[0].name
    device = tensors[first].device
    for argument in signature.tensors[1:]:
        value = tensors[argument.name]
        if value is not None and value.device != device:
            raise invalid(
                signature.name,
                argument.name,
                f"device {device}, where `{first}` is",
                str(value.device),
                "move one of them with .to(device)",
            )
    _check_memory(signature, tensors)
    for group in signature.same_dtype:
        present = [name for name in group if tensors[name] is not None]
        for name in present[1:]:
            source = present[0]
            if signature.is_coded(present[1], tensors) and not signature.is_coded(source, tensors):
                source = present[1]
            leader = tensors[source].dtype
            if tensors[name].dtype != leader:
                raise invalid(
                    signature.name,
                    name,
                    f"{name_of(leader)}, the dtype of `{source}`",
                    name_of(tensors[name].dtype),
                    _remedy_of_two(signature, source, name, tensors),
                )
    for name, scale in signature.scales.items():
        if tensors[scale] is not None and not signature.is_coded(name, tensors):
            raise invalid(
                signature.name,
                scale,
                f"None, since `{name}` holds no 8-bit values",
                f"{describe(tensors[scale])}, and `{name}` {name_of(tensors[name].dtype)}",
                f"omit it, or pass an 8-bit `{name}`",
            )


def _check_memory(signature: Signature, tensors: Mapping[str, Any]) -> None:
    """Check that no written tensor overlaps itself or another argument."""
    for a, b in itertools.combinations(signature.mutates, 2):
        if tensors[a] is tensors[b]:
            raise invalid(
                signature.name, b, f"a tensor other than `{a}`", "the same one", "both are written: pass a copy"
            )
    judged = {n: t for n, t in tensors.items() if isinstance(t, Tensor) and memory.has_memory(t)}
    for name in (n for n in signature.mutates if n in judged):
        tensor = judged[name]
        if memory.overlaps_itself(tensor):
            raise invalid(
                signature.name,
                name,
                "a tensor whose elements do not overlap, since it is written",
                f"strides {list(tensor.stride())} of shape {list(tensor.shape)}",
                "pass a tensor that is not expanded",
            )
        for other, value in judged.items():
            if other != name and memory.overlap(tensor, value):
                raise invalid(
                    signature.name,
                    other,
                    f"memory apart from `{name}`, which is written",
                    "memory that overlaps it",
                    "pass a copy",
                )


def bind_dims(signature: Signature, tensors: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Bind every dim from its binder and check all its other occurrences.

    Raises:
        InvalidArgument: where two shapes do not fit together.
    """
    dims: dict[str, Any] = {}
    for name, binder in signature.binders.items():
        shape = signature.tensor(binder).shape
        sizes = tensors[binder].shape
        trailing = len(shape.dims)
        if name == shape.star:
            dims[name] = tuple(sizes[: len(sizes) - trailing])
            continue
        for position, dim in enumerate(shape.dims, start=len(sizes) - trailing):
            if isinstance(dim, Affine) and dim.name == name:
                dims[name] = _solve(signature, binder, dim, sizes[position], tensors[binder])
                if dim.is_bare:
                    break
    for argument in signature.tensors:
        value = tensors[argument.name]
        if value is None:
            continue
        allowed = [shape.value(dims, options) for shape in argument.shape.alternatives]
        if not any(
            len(sizes) == value.dim() and all(a == b for a, b in zip(sizes, value.shape, strict=True))
            for sizes in allowed
        ):
            raise invalid(
                signature.name,
                argument.name,
                f"shape [{argument.shape.text}] = {' or '.join(dict.fromkeys(str(list(sizes)) for sizes in allowed))}",
                f"shape {list(value.shape)}",
                _where_dims_come_from(signature, argument, dims, tensors),
            )
    return dims


def _solve(signature: Signature, binder: str, dim: Affine, size: Any, tensor: Tensor) -> Any:
    quotient, rest = (size - dim.offset) // dim.coefficient, (size - dim.offset) % dim.coefficient
    if rest != 0 or quotient < 0:
        raise invalid(
            signature.name,
            binder,
            f"a dim of the form {dim.source()}",
            f"{size} in shape {list(tensor.shape)}",
            "slice or pad it",
        )
    return quotient


def _where_dims_come_from(
    signature: Signature, argument: TensorArgument, dims: Mapping[str, Any], tensors: Mapping[str, Any]
) -> str:
    sources = []
    for name in dict.fromkeys(argument.shape.names()):
        binder = signature.binders[name]
        if binder != argument.name:
            value = list(dims[name]) if isinstance(dims[name], tuple) else dims[name]
            sources.append(f"{name} = {value} comes from `{binder}` {describe(tensors[binder])}")
    return ", ".join(sources) or "reshape it"


def _check_requirements(
    signature: Signature, tensors: Mapping[str, Any], dims: Mapping[str, Any], options: Mapping[str, Any]
) -> None:
    for requirement in signature.require:
        names: dict[str, Any] = {**tensors, **dims, **options}
        try:
            holds = evaluate(requirement.expression, names)
        except (TypeError, ZeroDivisionError) as error:
            holds, names = False, {**names, "error": error}
        if not holds and requirement.blame is not None:
            blamed, expected = requirement.blame(names)
            shape = f"shape {list(tensors[blamed].shape)}"
            raise invalid(signature.name, blamed, expected, shape, requirement.text_for(names))
        if not holds:
            got = ", ".join(
                f"{n} = {names[n]!r}"
                if n in dims or n in options
                else f"`{n}` {'absent' if names[n] is None else 'given'}"
                for n in requirement.names
                if n in names
            )
            first = next((n for n in requirement.names if n in options or n in tensors), None)
            first = first or next(signature.binders[n] for n in requirement.names if n in dims)
            raise invalid(signature.name, first, requirement.expression, got, requirement.text_for(names))


def numel(dims: Mapping[str, Any], name: str) -> int:
    """The size of a dim, or the product of a star dim's sizes."""
    value = dims[name]
    return math.prod(value) if isinstance(value, tuple) else int(value)
