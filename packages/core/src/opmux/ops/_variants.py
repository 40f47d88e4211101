"""Ops derived from another op: its in-place form, and the variant that returns more.

The parameters, their descriptions and their requirements are written once, with the base op.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from opmux.definition import OpFunction, define_op

_SECTIONS = ("Args:", "Returns:", "Raises:", "Source:")


def in_place(base: OpFunction[Any], *, check_data: Callable[..., None] | None = None, **becomes: str) -> Any:
    """Define the in-place form of an op, under its name with an underscore.

    Args:
        base: The op that returns its results.
        check_data: Checks the index data; its errors name the new op.
        becomes: Each tensor that is written -> the output it becomes, in the order of the outputs.

    Returns:
        The public function.

    Raises:
        TypeError: If an output is not written, or the outputs are in a different order from the tensors.
    """
    op, name = base.op, f"{base.op.name}_"
    mutates = tuple(t.name for t in op.signature.tensors if t.name in becomes)
    if tuple(becomes[t] for t in mutates) != tuple(o.name for o in op.signature.outputs):
        raise TypeError(f"{name}: every output of {op.name} is written into a tensor, in order; got {becomes}")
    sections = _sections(op.doc)
    written = " or ".join(mutates)
    changes = " and ".join(f"{tensor} becomes {output}" for tensor, output in becomes.items())
    arguments = "\n".join(
        f"{text.removesuffix('.')}; overwritten with {becomes[argument]}." if argument in becomes else text
        for argument, text in _entries(sections["Args:"])
    )

    def form(*tensors: Any, **options: Any) -> None: ...

    form.__name__, form.__module__ = name, op.reference.__module__
    form.__signature__ = _parameters(base).replace(return_annotation=None)  # type: ignore[attr-defined]
    form.__doc__ = "\n\n".join(
        [
            f"Compute `{op.name}` in place: {changes}.",
            f"Args:\n{arguments}",
            f"Raises:\n    InvalidArgument: As for `{op.name}`, or if {written} requires grad or overlaps\n"
            "        itself or another argument in memory.",
            f"Source:\n{sections['Source:']}",
        ]
    )
    return define_op(mutates=mutates, in_place_of=op.name, check_data=check_data, **_inherited(base))(form)


def variant(base: OpFunction[Any], **declaration: Any) -> Callable[[Callable[..., Any]], Any]:
    """Make a decorator that defines an op with the parameters of another.

    The body is called with its own parameters, defaults filled in. Its return annotation becomes the op's, and its
    parameters that have a default are added to the base's. The base's Args section is added to its docstring, before
    the entries of the body's own Args section.

    Args:
        base: The op whose parameters, relations, dtypes and flop count also apply to this one.
        **declaration: Further arguments of the decorator that defines an op.
    """

    def define(body: Callable[..., Any]) -> Any:
        given = inspect.signature(body)
        added = [p for p in given.parameters.values() if p.default is not p.empty]
        parameters = [*_parameters(base).parameters.values(), *added]
        signature = inspect.Signature(parameters, return_annotation=given.return_annotation)

        @functools.wraps(body)
        def reference(*tensors: Any, **options: Any) -> Any:
            bound = signature.bind(*tensors, **options)
            bound.apply_defaults()
            return body(*bound.args, **bound.kwargs)

        reference.__signature__ = signature  # type: ignore[attr-defined]
        before, returns, after = inspect.cleandoc(body.__doc__ or "").partition("Returns:")
        summary, _, of_added = before.partition("Args:\n")
        arguments = "\n".join(part for part in (_sections(base.op.doc)["Args:"], of_added.rstrip()) if part)
        reference.__doc__ = f"{summary}Args:\n{arguments}\n\n{returns}{after}"
        return define_op(**{**_inherited(base), **declaration})(reference)

    return define


def _parameters(base: OpFunction[Any]) -> inspect.Signature:
    """The signature of the base's definition, without ``backend`` and ``out``, which every op has."""
    return inspect.signature(base.reference)


def _inherited(base: OpFunction[Any]) -> dict[str, Any]:
    """The properties that every form of an op shares."""
    op = base.op
    return {
        "require": tuple((r.expression, r.meaning, r.blame) for r in op.signature.require),
        "same_dtype": op.signature.same_dtype,
        "scales": op.signature.scales,
        "flops": op.flops,
        "flops_bound": op.flops_bound,
        "touched": op.touched,
        "capturable": op.capturable,
        "caveats": op.caveats,
    }


def _sections(doc: str) -> dict[str, str]:
    """The text of each section of a docstring, with its original indentation."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in doc.splitlines():
        if line in _SECTIONS:
            lines = found.setdefault(line, [])
        else:
            lines.append(line)
    return {title: "\n".join(text).rstrip() for title, text in found.items()}


def _entries(section: str) -> list[tuple[str, str]]:
    """The (argument, text) pairs of an Args section."""
    entries: list[tuple[str, str]] = []
    for line in section.splitlines():
        if line.startswith("     ") and entries:
            name, text = entries.pop()
            entries.append((name, f"{text}\n{line}"))
        else:
            entries.append((line.strip().partition(":")[0], line))
    return entries
