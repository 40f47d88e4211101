"""Source for one op's call path, generated from its signature and the registered features.

Everything an op does per call is in the one function generated here: guard, shape relations, key, one dict lookup, the
target. It has no loops and builds no container except the key. Calls with ``out=`` have a function of their own. Calls
that are not plain leave through ``_slow``, which explains, routes or plans (`dispatch`). `names` lists the names that
the source may use.
"""

import itertools
import linecache
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

from opmux.callpath import names
from opmux.callpath.comparisons import conditions_of, shape_lines
from opmux.declared.features import Feature
from opmux.signatures.signature import Signature, TensorArgument

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
    lines, conditions = conditions_of(signature, features, True, into)
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
    lines, _, _ = shape_lines(signature, sized)
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
    lines, conditions = conditions_of(signature, (), ranked=False)
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
