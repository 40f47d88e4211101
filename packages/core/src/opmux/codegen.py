"""Source for one op's call path, made from its signature and the features that are registered.

Everything an op does per call is in the one function written here: guard, shape relations, key, one dict lookup, the
target. Written out, it has no loops and builds no containers but the key. Whatever is not plain leaves through
``_slow``, which explains, routes or plans (`dispatch`).
"""

import linecache
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

from opmux.dims import Affine, Shape
from opmux.features import Feature
from opmux.signature import Signature, TensorArgument


def compile_function(name: str, source: str, namespace: dict[str, Any]) -> FunctionType:
    """Compile a function written here; tracebacks show its source."""
    filename = f"<opmux {name} {len(linecache.cache)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    exec(compile(source, filename, "exec"), namespace)
    function: FunctionType = namespace[name]
    return function


def _default(value: Any) -> str:
    return str(value) if type(value).__name__ == "dtype" else repr(value)


def parameters(signature: Signature, extra: Iterable[str] = ()) -> str:
    """The parameter list of the op, with defaults."""
    parts = [t.name + ("=None" if t.optional else "") for t in signature.tensors]
    keyword = [o.name if o.required else f"{o.name}={_default(o.default)}" for o in signature.options] + list(extra)
    return ", ".join(parts + (["*", *keyword] if keyword else []))


def forwarded(signature: Signature, extra: Iterable[str] = ()) -> str:
    """The argument list that passes the op's arguments on."""
    parts = [t.name for t in signature.tensors] + [f"{o.name}={o.name}" for o in signature.options]
    return ", ".join([*parts, *extra])


def _all(conditions: Iterable[str]) -> str:
    return " and ".join(conditions) or "True"


def _optional(argument: TensorArgument, read: str, absent: str) -> str:
    expression = read.format(argument.name)
    return f"({absent} if {argument.name} is None else {expression})" if argument.optional else expression


def _plain_guard(signature: Signature) -> list[str]:
    """True for plain tensors, in eager mode, with no gradient due."""
    first = signature.tensors[0].name
    conditions = [
        f"{t.name}.__class__ in _PLAIN" if not t.optional else f"({t.name} is None or {t.name}.__class__ in _PLAIN)"
        for t in signature.tensors
    ]
    needs_grad = " or ".join(_optional(t, "{}.requires_grad", "False") for t in signature.tensors)
    return [
        *conditions,
        "not _dispatch_modes()",
        "_functorch_level() is None",
        "_forward_ad._current_level < 0",
        f"not _function_modes({first})",
        f"not (_grad_enabled() and ({needs_grad}))",
    ]


def _shape_lines(signature: Signature, sized: frozenset[str]) -> tuple[list[str], list[str]]:
    """Statements that bind the dims, and the conditions that every shape meets.

    A shape of the wrong rank fails in an unpacking or an index, which the caller treats as a broken condition.
    """
    lines: list[str] = []
    conditions: list[str] = []
    bound: set[str] = set()
    seen: dict[str, str] = {}
    binders = signature.binders
    order = sorted(signature.tensors, key=lambda t: (t.optional, t.name not in binders.values()))
    for tensor in order:
        shape, size = tensor.shape, f"s_{tensor.name}"
        if tensor.optional:
            test = _matches(f"{tensor.name}.shape", shape, bound, seen)
            conditions.append(f"({tensor.name} is None or {test})")
            continue
        if shape.text in seen:
            conditions.append(f"{tensor.name}.shape == {seen[shape.text]}")
            continue
        binds = [n for n, b in binders.items() if b == tensor.name and n not in bound]
        if not binds:
            conditions.append(_matches(f"{tensor.name}.shape", shape, bound, seen))
            continue
        lines.append(f"{size} = {tensor.name}.shape")
        seen[shape.text] = size
        if shape.star is None:
            _bind_all(shape, size, binds, bound, lines, conditions)
        else:
            _bind_trailing(shape, size, binds, bound, lines, conditions)
            if shape.star in binds:
                if shape.star in sized or sum(t.shape.star == shape.star for t in signature.tensors) > 1:
                    lines.append(f"{shape.star} = {size}[:{-len(shape.dims) or None}]")
                bound.add(shape.star)
            elif shape.star:
                conditions.append(f"{size}[:{-len(shape.dims) or None}] == {shape.star}")
    return lines, conditions


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
    else:
        conditions.append(f"{read} == {dim.source()}")


def _bind_all(
    shape: Shape, size: str, binds: list[str], bound: set[str], lines: list[str], conditions: list[str]
) -> None:
    names, later = [], []
    fresh = set(binds) - bound
    for position, dim in enumerate(shape.dims):
        if isinstance(dim, Affine) and dim.is_bare and dim.name in fresh:
            names.append(str(dim.name))
            bound.add(str(dim.name))
            fresh.discard(str(dim.name))
        else:
            names.append(f"{size}_{position}")
            later.append((dim, names[-1]))
    lines.append(f"{', '.join(names)}, = {size}" if len(names) == 1 else f"{', '.join(names)} = {size}")
    for dim, read in later:
        _bind_one(dim, read, binds, bound, lines, conditions)


def _bind_trailing(
    shape: Shape, size: str, binds: list[str], bound: set[str], lines: list[str], conditions: list[str]
) -> None:
    for position, dim in enumerate(shape.dims):
        _bind_one(dim, f"{size}[{position - len(shape.dims)}]", binds, bound, lines, conditions)


def _matches(read: str, shape: Shape, bound: set[str], seen: dict[str, str]) -> str:
    if shape.text in seen:
        return f"{read} == {seen[shape.text]}"
    dims = ", ".join(dim.source() for dim in shape.dims)
    trailing = f"({dims},)" if shape.dims else "()"
    return f"{read} == " + (trailing if shape.star is None else f"{shape.star} + {trailing}")


def _key(signature: Signature, features: Iterable[Feature], ambient: Iterable[str]) -> str:
    """The plan key: dtypes, devices, flags, ambient state, features."""
    tensors = signature.tensors
    cpu = _all(f"{t.name}.is_cpu" if not t.optional else f"({t.name} is None or {t.name}.is_cpu)" for t in tensors)
    devices = ", ".join(_optional(t, "{}.get_device()", "None") for t in tensors)
    parts = [_optional(t, "{}.dtype", "None") for t in tensors]
    # get_device() is -1 for both cpu and meta, hence the two-step answer; it is one call dearer on a GPU only.
    parts.append(f"{cpu} or ({devices}, {tensors[0].name}.is_meta)")
    parts += [o.name for o in signature.options if o.is_flag]
    parts += [*ambient, *(f.source for f in features)]
    return ", ".join(parts) + ("," if len(parts) == 1 else "")


def key_layout(signature: Signature, features: Iterable[Feature], ambient: Iterable[str]) -> dict[str, int]:
    """Where each feature and each ambient source stands in the key."""
    start = len(signature.tensors) + 1 + sum(o.is_flag for o in signature.options)
    labels = [*ambient, *(f.label for f in features)]
    return {label: start + offset for offset, label in enumerate(labels)}


def entry_source(
    signature: Signature, features: tuple[Feature, ...], ambient: tuple[str, ...], table: str, doc: str
) -> str:
    """The public function. ``table`` is the global name of the plan table that this key belongs to."""
    extra = ["backend=None"] + (["out=None"] if signature.takes_out else [])
    no_extras = "out is backend is None" if signature.takes_out else "backend is None"
    sized = frozenset(s for s in signature.stars if any(s in f.source for f in features))
    sized |= {s for s in signature.stars if any(s in r.names for r in signature.require)}
    lines, conditions = _shape_lines(signature, frozenset(sized))
    conditions += [f"({r.expression})" for r in signature.require]
    out = ", out=out" if signature.takes_out else ""
    rest = forwarded(signature)
    indent = "            "
    return "\n".join(
        [
            f"def {signature.name}({parameters(signature, extra)}):",
            f"    {doc!r}",
            "    if _compiling():",
            f"        return _traced({rest}, backend=backend{out})",
            f"    if {no_extras} and {_all(_plain_guard(signature))}:",
            "        try:",
            *(indent + line for line in lines),
            f"{indent}if {_all(conditions)}:",
            f"{indent}    return {table}[{_key(signature, features, ambient)}]({rest})",
            "        except Exception as error:",
            f"            return _recover(error, {rest})",
            f"    return _slow({rest}, backend=backend{out})",
            "",
        ]
    )


def key_source(signature: Signature, features: tuple[Feature, ...], ambient: tuple[str, ...]) -> str:
    """``_key_of``: the same key for the ways that are not direct; the shapes have been checked before."""
    sized = frozenset(s for s in signature.stars if any(s in f.source for f in features))
    lines, _ = _shape_lines(signature, sized)
    return "\n".join(
        [
            f"def _key_of({parameters(signature)}):",
            *(f"    {line}" for line in lines),
            f"    return ({_key(signature, features, ambient)})",
            "",
        ]
    )


def bound_source(signature: Signature, options: dict[str, Any], present: frozenset[str]) -> str:
    """``bound``: the planned target with its options fixed."""
    tensors = ", ".join(t.name + ("=None" if t.optional and t.name not in present else "") for t in signature.tensors)
    passed = [t.name for t in signature.tensors] + [f"{name}=_option_{name}" for name in options]
    return f"def bound({tensors}):\n    return _run({', '.join(passed)})\n"


def traced_source(signature: Signature) -> str:
    """``_traced``: what Dynamo sees, a call of the registered op and nothing of the reference."""
    rest = forwarded(signature, ["backend=backend"])
    extra = ["backend=None"] + (["out=None"] if signature.takes_out else [])
    lines = [f"def _traced({parameters(signature, extra)}):"]
    if signature.takes_out:
        names = [f"out_{o.name}" for o in signature.outputs] if len(signature.outputs) > 1 else ["out"]
        unpacked = ", ".join(f"{n}={'out' if len(names) == 1 else f'out[{i}]'}" for i, n in enumerate(names))
        lines += [
            "    if out is not None:",
            f"        _ops.{signature.name}.out({rest}, {unpacked})",
            "        return out",
        ]
    lines += [f"    return _ops.{signature.name}.default({rest})", ""]
    return "\n".join(lines)


def make_bound(signature: Signature, run: Callable[..., Any], options: dict[str, Any], present: frozenset[str]) -> Any:
    """Compile `bound_source` around a planned target."""
    namespace = {"_run": run, **{f"_option_{name}": value for name, value in options.items()}}
    return compile_function("bound", bound_source(signature, options, present), namespace)
