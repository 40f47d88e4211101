"""The comparisons of a call with the signature, as source: what binds the dims, and what must hold of each call."""

from collections.abc import Mapping, Sequence
from typing import Any

from opmux.callpath import names
from opmux.declared.features import Feature
from opmux.signatures.dims import Affine, Either, Shape
from opmux.signatures.signature import UNREDUCED, Output, Signature, TensorArgument

_CLASSES = {"ints": "tuple", "bools": "tuple", "bool": "bool"}


def _option_conditions(signature: Signature) -> list[str]:
    """Conditions that keep out of keys what validation would normalise or refuse: a list for a tuple, 1 for True."""
    return [f"{o.name}.__class__ is {_CLASSES[o.kind]}" for o in signature.options if o.kind in _CLASSES]


def shape_lines(
    signature: Signature, sized: frozenset[str], ranked: bool = False
) -> tuple[list[str], list[str], dict[str, str]]:
    """Statements that bind the dims, the conditions that every shape must meet, and the shapes that are in variables.

    A shape of the wrong rank raises at an unpacking or an index, which the caller treats as a condition that fails.
    """
    lines: list[str] = []
    conditions: list[str] = []
    bound: set[str] = set()
    seen: dict[str, str] = {}
    binders = signature.binders
    order = sorted(signature.tensors, key=lambda t: (t.optional, t.name not in binders.values()))
    for tensor in order:
        shape, size = tensor.shape, names.shape_name(tensor.name)
        if tensor.optional:
            test = _matches(tensor, seen, ranked)
            conditions.append(f"({tensor.name} is None or {test})")
            continue
        if shape.text in seen:
            conditions.append(f"{tensor.name}.shape == {seen[shape.text]}")
            continue
        binds = [n for n, b in binders.items() if b == tensor.name and n not in bound]
        if not binds:
            conditions.append(_matches(tensor, seen, ranked))
            continue
        lines.append(f"{size} = {tensor.name}.shape")
        seen[shape.text] = size
        if shape.star is None:
            _bind_all(shape, size, binds, bound, lines, conditions)
        else:
            _bind_trailing(shape, size, binds, bound, lines, conditions)
            if shape.star in binds:
                if shape.star in sized or any(
                    t.shape.star == shape.star and t.shape.text != shape.text for t in signature.tensors
                ):
                    lines.append(f"{shape.star} = {size}[:{-len(shape.dims) or None}]")
                bound.add(shape.star)
            elif shape.star:
                conditions.append(f"{size}[:{-len(shape.dims) or None}] == {shape.star}")
    return lines, conditions, seen


def conditions_of(
    signature: Signature, features: tuple[Feature, ...], ranked: bool, into: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """Statements that bind the dims, and everything that must hold of each call: options, shapes, relations.

    Args:
        signature: the op's.
        features: those in the key.
        ranked: whether a guard has checked the ranks.
        into: the tensors that results are written into.
    """
    sized = {s for s in signature.stars if any(s in f.source for f in features)}
    sized |= {s for s in signature.stars if any(s in r.names for r in signature.require)}
    if into:
        sized |= {o.shape.star for o in signature.outputs if o.shape.star}
    lines, shapes, seen = shape_lines(signature, frozenset(sized), ranked)
    written = into or signature.mutates
    apart = [_has_form(output, name, seen) for output, name in zip(signature.outputs, into, strict=False)]
    if written:
        read = "".join(f"{t.name}, " for t in signature.tensors if t.name not in signature.mutates)
        apart.append(f"{names.SEPARATE}(({', '.join(written)},), ({read}))")
    return lines, [*_option_conditions(signature), *shapes, *(f"({r.expression})" for r in signature.require), *apart]


def _has_form(output: Output, name: str, seen: Mapping[str, str]) -> str:
    """The condition that a tensor to be written has an output's shape."""
    shape = seen.get(output.shape.text) or _shape_source(output.shape)
    if output.mask_index is not None:
        shape = f"({shape} if output_mask[{output.mask_index}] else (0,))"
    if output.reduction is not None:
        shape = f"({shape} if {output.reduction} == {UNREDUCED!r} else ())"
    return f"{name}.shape == {shape}"


def _shape_source(shape: Shape) -> str:
    if not shape.dims:
        return shape.star or "()"
    trailing = f"({', '.join(dim.source() for dim in shape.dims)},)"
    return trailing if shape.star is None else f"{shape.star} + {trailing}"


def _bind_one(dim: Any, read: str, binds: list[str], bound: set[str], lines: list[str], conditions: list[str]) -> None:
    if isinstance(dim, Affine) and dim.name in binds and dim.name not in bound:
        bound.add(dim.name)
        if dim.is_bare:
            if read != dim.name:
                lines.append(f"{dim.name} = {read}")
        else:
            rest = f"{read} - {dim.offset}" if dim.offset else read
            lines.append(
                f"{dim.name} = ({rest}) // {dim.coefficient}" if dim.coefficient > 1 else f"{dim.name} = {rest}"
            )
            conditions.append(f"{dim.source()} == {read}" if dim.coefficient > 1 else f"{dim.name} >= 0")
    elif isinstance(dim, Either):
        conditions.append(f"{read} in ({dim.first.source()}, {dim.second.source()})")
    else:
        conditions.append(f"{read} == {dim.source()}")


def _bind_all(
    shape: Shape, size: str, binds: list[str], bound: set[str], lines: list[str], conditions: list[str]
) -> None:
    targets, later = [], []
    fresh = set(binds) - bound
    for position, dim in enumerate(shape.dims):
        if isinstance(dim, Affine) and dim.is_bare and dim.name in fresh:
            targets.append(str(dim.name))
            bound.add(str(dim.name))
            fresh.discard(str(dim.name))
        else:
            targets.append(names.size_name(size, position))
            later.append((dim, targets[-1]))
    lines.append(f"{', '.join(targets)}, = {size}" if len(targets) == 1 else f"{', '.join(targets)} = {size}")
    for dim, read in later:
        _bind_one(dim, read, binds, bound, lines, conditions)


def _bind_trailing(
    shape: Shape, size: str, binds: list[str], bound: set[str], lines: list[str], conditions: list[str]
) -> None:
    for position, dim in enumerate(shape.dims):
        _bind_one(dim, f"{size}[{position - len(shape.dims)}]", binds, bound, lines, conditions)


def _matches(tensor: TensorArgument, seen: dict[str, str], ranked: bool) -> str:
    """The condition that a tensor whose dims are all bound has its shape; ``ranked``: a guard has checked the ranks."""
    name, shape = tensor.name, tensor.shape
    if shape.text in seen:
        return f"{name}.shape == {seen[shape.text]}"
    if len(shape.alternatives) > 1:
        either = " or ".join(_has_shape(name, one, ranked) for one in shape.alternatives)
        return f"({either})"
    return _has_shape(name, shape, ranked)


def _has_shape(name: str, shape: Shape, ranked: bool) -> str:
    if ranked and shape.star is None and len(shape.dims) == 1:
        return f"{name}.numel() == {shape.dims[0].source()}"  # a vector's: half the cost of reading its shape
    return f"{name}.shape == {_shape_source(shape)}"
