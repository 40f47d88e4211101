"""Source for one op's call path, generated from its signature and the registered features.

Everything an op does per call is in the one function generated here: guard, shape relations, key, one dict lookup, the
target. It has no loops and builds no container except the key. Calls that are not plain leave through ``_slow``, which
explains, routes or plans (`dispatch`). `names` lists the names that the source may use.
"""

import itertools
import linecache
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

from opmux.callpath import names
from opmux.declared.features import Feature
from opmux.signatures.dims import Affine, Either, Shape
from opmux.signatures.signature import UNREDUCED, Output, Signature, TensorArgument

_numbers = itertools.count()


def compile_function(name: str, source: str, namespace: dict[str, Any], shown: bool = True) -> FunctionType:
    """Compile generated source; tracebacks show it where ``shown``, which is False for functions made many times."""
    filename = f"<opmux {name}>"
    if shown:
        filename = f"<opmux {name} {next(_numbers)}>"
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


def stand_ins(signature: Signature) -> str:
    """The tensors as a guard takes them: a constant stands for an absent one; its absence is part of the key."""
    return ", ".join(
        f"{names.absent_name(t.name)} if {t.name} is None else {t.name}" if t.optional else t.name
        for t in signature.tensors
    )


_CLASSES = {"ints": "tuple", "bools": "tuple", "bool": "bool"}


def _option_conditions(signature: Signature) -> list[str]:
    """Conditions that keep out of keys what validation would normalise or refuse: a list for a tuple, 1 for True."""
    return [f"{o.name}.__class__ is {_CLASSES[o.kind]}" for o in signature.options if o.kind in _CLASSES]


def _chosen_lines(signature: Signature) -> list[str]:
    """Statements that make None of an output's dtype which is that of its argument: both are one key."""
    return [
        line
        for rule in signature.chosen
        for line in (
            f"if {rule.option} is not None and {rule.option} is {rule.argument}.dtype:",
            f"    {rule.option} = None",
        )
    ]


def _shape_lines(
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


def _conditions(
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
    lines, shapes, seen = _shape_lines(signature, frozenset(sized), ranked)
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


def _key(signature: Signature, features: Iterable[Feature], ambient: Iterable[str]) -> str:
    """The plan key: dtypes, devices, whether autocast is on, flags, ambient state, features."""
    tensors = signature.tensors
    devices = ", ".join(_optional(t, "{}.device", "None") for t in tensors)
    parts = [_optional(t, "{}.dtype", "None") for t in tensors]
    parts += [f"({devices},)", f"{names.AUTOCAST}()", *_varying(signature, features, ambient)]
    return ", ".join(parts)


def _varying(signature: Signature, features: Iterable[Feature], ambient: Iterable[str]) -> list[str]:
    """The part of the key that a guard does not settle: flags, ambient state, features."""
    return [*(o.name for o in signature.options if o.is_flag), *ambient, *(f.source for f in features)]


def _front_key(signature: Signature, features: Iterable[Feature], ambient: Iterable[str]) -> str:
    """The key among the plans behind one guard: presence, flags, ambient state, features."""
    parts = [f"{t.name} is None" for t in signature.tensors if t.optional]
    parts += _varying(signature, features, ambient)
    return ", ".join(parts) if parts else "None"


def key_layout(signature: Signature, features: Iterable[Feature], ambient: Iterable[str]) -> dict[str, int]:
    """The position of each feature and each ambient source in the key."""
    start = len(signature.tensors) + 2 + sum(o.is_flag for o in signature.options)
    labels = [*ambient, *(f.label for f in features)]
    return {label: start + offset for offset, label in enumerate(labels)}


def entry_source(
    signature: Signature, features: tuple[Feature, ...], ambient: tuple[str, ...], version: int, doc: str
) -> str:
    """The public function and ``_traced``, which it calls under Dynamo.

    ``version`` separates the globals of this code from those of earlier code: keys of one must not find plans of the
    other.
    """
    extra = ["backend=None"] + (["out=None"] if signature.takes_out else [])
    out = ", out=out" if signature.takes_out else ""
    rest = forwarded(signature)
    direct = _direct_lines(
        signature, features, ambient, rest, names.front_name(version), names.other_front_name(version)
    )
    if signature.scales:  # a call without a scale pays for none: its guard, conditions and key leave them out
        scales = list(dict.fromkeys(signature.scales.values()))
        short = _direct_lines(
            without_scales(signature), features, ambient, rest,
            names.brief_front_name(version), names.other_brief_front_name(version),
        )  # fmt: skip
        direct = [
            f"if {' is '.join(scales)} is None:", *(f"    {line}" for line in short),
            "else:", *(f"    {line}" for line in direct),
        ]  # fmt: skip
    if signature.takes_out:
        into = f"    return {names.into_name(version)}({rest}, backend=backend, out=out)"
        direct = ["if out is not None:", into, *direct]
    # What the guard does not check: dispatch modes (FakeTensorMode among them), forward AD, function modes, profilers.
    plain = (
        f"not {names.PROFILER}._is_profiler_enabled and "
        f"not {names.DISPATCH_MODES}() and {names.FORWARD_AD}._current_level < 0 "
        f"and not {names.FUNCTION_MODES}({signature.tensors[0].name})"
    )
    return traced_source(signature) + "\n".join(
        [
            "",
            f"def {signature.name}({parameters(signature, extra)}):",
            f"    {doc!r}",
            f"    if {names.COMPILING}():",
            f"        return {names.TRACED}({rest}, backend=backend{out})",
            f"    if {plain}:",
            *(f"        {line}" for line in direct),
            f"    return {names.SLOW}({rest}, backend=backend{out})",
            "",
        ]
    )


def into_source(signature: Signature, features: tuple[Feature, ...], ambient: tuple[str, ...], version: int) -> str:
    """The function that the public one calls for plain calls with ``out=``.

    Its guard has the tensors to be written beside the others; shapes and memory are checked at each call. Whatever else
    they must be was checked when the plan was put behind the guard (`opmux.running.outputs`). What does not fit takes
    the long way, which says why, and so does a tensor to be written that overlaps an argument.
    """
    rest, into = forwarded(signature), names.results(signature)
    slow = f"    return {names.SLOW}({rest}, backend=backend, out=out)"
    lines = [f"def {names.into_name(version)}({parameters(signature, ['backend=None', 'out=None'])}):"]
    if len(into) > 1:
        lines += [
            f"    if out.__class__ is not tuple or len(out) != {len(into)}:",
            f"    {slow}",
            f"    {', '.join(into)} = out",
        ]
    direct = _direct_lines(
        signature, features, ambient, rest, names.into_front_name(version), names.other_into_front_name(version), into
    )
    return "\n".join([*lines, *(f"    {line}" for line in direct), slow, ""])


def _direct_lines(
    signature: Signature,
    features: tuple[Feature, ...],
    ambient: tuple[str, ...],
    rest: str,
    front: str,
    other: str,
    into: Sequence[str] = (),
) -> list[str]:
    """The direct way of calls with these tensors: guard, conditions, key, and the target with all arguments."""
    lines, conditions = _conditions(signature, features, True, into)
    lines = [*_chosen_lines(signature), *lines]
    tensors = ", ".join([stand_ins(signature), *into])
    rest += ", out=out" if into else ""
    return [
        f"same, recorded, runs = {front}",
        f"if not same({tensors}) or (recorded is not None and recorded is not {names.GRAD_ENABLED}()):",
        f"    runs = {other}({tensors})",
        "if backend is not None and runs is not None:",
        "    runs = runs.forced(backend)",
        "if runs is not None:",
        "    try:",
        *(f"        {line}" for line in lines),
        f"        if {_all(conditions)}:",
        f"            return runs[{_front_key(signature, features, ambient)}]({rest})",
        "    except Exception as error:",
        f"        return {names.RECOVER}(error, runs, {rest})",
    ]


def without_scales(signature: Signature) -> Signature:
    """The signature of calls without the scales of 8-bit codes."""
    scales = set(signature.scales.values())
    return replace(signature, tensors=tuple(t for t in signature.tensors if t.name not in scales), scales={})


def key_source(signature: Signature, features: tuple[Feature, ...], ambient: tuple[str, ...]) -> str:
    """``_key_of``: the same key, for calls that do not come by the direct way; their shapes are already checked."""
    sized = frozenset(s for s in signature.stars if any(s in f.source for f in features))
    lines, _, _ = _shape_lines(signature, sized)
    return "\n".join(
        [
            f"def {names.KEY_OF}({parameters(signature)}):",
            *(f"    {line}" for line in lines),
            f"    return ({_key(signature, features, ambient)})",
            "",
        ]
    )


def fits_source(signature: Signature) -> str:
    """``_fits``: whether shapes and flags fit the signature; `check_call` explains why they do not."""
    lines, conditions = _conditions(signature, (), ranked=False)
    chosen = [f"({r.option} is None or {r.option} is not {r.argument}.dtype)" for r in signature.chosen]
    conditions = [*chosen, *conditions]
    return "\n".join(
        [
            f"def {names.FITS}({parameters(signature)}):",
            "    try:",
            *(f"        {line}" for line in lines),
            f"        return {_all(conditions)}",
            "    except Exception:",
            "        return False",
            "",
        ]
    )


def bound_source(signature: Signature, options: dict[str, Any], present: frozenset[str]) -> str:
    """``bound``: the planned target with its options fixed."""
    tensors = ", ".join(t.name + ("=None" if t.optional and t.name not in present else "") for t in signature.tensors)
    passed = [t.name for t in signature.tensors] + [f"{name}={names.option_name(name)}" for name in options]
    rest = ", ".join(passed)
    return (
        f"def bound({tensors}):\n"
        f"    try:\n"
        f"        return {names.RUN}({rest})\n"
        f"    except {names.DEFERRED}:\n"
        f"        return {names.AGAIN}({names.RUN}, {rest})\n"
    )


def traced_source(signature: Signature) -> str:
    """``_traced``: what Dynamo sees, a call of the registered op and nothing of the reference."""
    rest = forwarded(signature, ["backend=backend"])
    extra = ["backend=None"] + (["out=None"] if signature.takes_out else [])
    lines = [f"def {names.TRACED}({parameters(signature, extra)}):"]
    if signature.takes_out:
        outs = names.results(signature)
        unpacked = ", ".join(f"{n}={'out' if len(outs) == 1 else f'out[{i}]'}" for i, n in enumerate(outs))
        lines += [
            "    if out is not None:",
            f"        {names.OPS}.{signature.name}.out({rest}, {unpacked})",
            "        return out",
        ]
    lines += [f"    return {names.OPS}.{signature.name}.default({rest})", ""]
    return "\n".join(lines)


def make_bound(
    signature: Signature,
    run: Callable[..., Any],
    options: dict[str, Any],
    present: frozenset[str],
    retry: tuple[type[Exception], Callable[..., Any]],
) -> Any:
    """Compile `bound_source` around a planned target.

    Args:
        signature: the op's.
        run: the planned target.
        options: the values of the options.
        present: the optional tensors that are given.
        retry: an exception of the target, and what runs it again then.
    """
    deferred, again = retry
    namespace = {names.RUN.text: run, names.DEFERRED.text: deferred, names.AGAIN.text: again}
    namespace |= {**{names.option_name(name): value for name, value in options.items()}}
    return compile_function("bound", bound_source(signature, options, present), namespace, shown=False)


def wrapper_source(signature: Signature, configured: bool) -> str:
    """``wrapper``: makes a plan's callable from a target and its config; it bumps the version of what was written."""
    keyword = ["*", *(o.name for o in signature.options)] if signature.options else []
    rest = forwarded(signature, [f"config={names.CONFIG}"] if configured else [])
    lines = [
        f"def wrapper({names.TARGET}, {names.CONFIG}):",
        f"    def run({', '.join([*(t.name for t in signature.tensors), *keyword])}):",
        f"        {'' if signature.mutates else 'return '}{names.TARGET}({rest})",
        *(f"        {names.BUMP}({name})" for name in signature.mutates),
        "    return run",
    ]
    return "\n".join(lines)


def make_writer(signature: Signature, takes_out: bool, bump: Callable[..., None]) -> Callable[..., Any]:
    """Compile ``wrapper``: from a plan's callable it makes one that takes ``out=`` and returns it.

    Args:
        signature: the op's.
        takes_out: whether the callable takes ``out=``; else its results are copied.
        bump: marks a tensor as written.
    """
    keyword, into = [*(o.name for o in signature.options), "out"], names.results(signature)
    rest = forwarded(signature)
    several = [f"        {', '.join(into)} = out"] if len(into) > 1 else []
    if takes_out:
        body = [
            f"        {names.TARGET}({rest}, out=out)",
            *several,
            *(f"        {names.BUMP}({name})" for name in into),
        ]
    else:
        made = [names.made_name(output.name) for output in signature.outputs]
        body = [
            f"        {', '.join(made)} = {names.TARGET}({rest})",
            *several,
            *(f"        {name}.copy_({result})" for name, result in zip(into, made, strict=True)),
        ]
    lines = [
        f"def wrapper({names.TARGET}):",
        f"    def run({', '.join([*(t.name for t in signature.tensors), '*', *keyword])}):",
        *body,
        "        return out",
        "    return run",
    ]
    return compile_function("wrapper", "\n".join(lines), {names.BUMP.text: bump}, shown=False)


def make_wrapper(signature: Signature, configured: bool, bump: Callable[..., None]) -> Callable[..., Any]:
    """Compile `wrapper_source`: a function of a target and its config; ``bump`` marks a tensor as written."""
    source = wrapper_source(signature, configured)
    return compile_function("wrapper", source, {names.BUMP.text: bump}, shown=False)
