"""An extension of griffe, which reads the docstrings for the site: signatures and text of ops that derive from others.

griffe reads source text. An op such as `add_rms_norm_ = in_place(add_rms_norm, ...)` has its signature and docstring
only once it is made, so these are taken from the imported op.
"""

import ast
import inspect
from typing import Any

import griffe

from opmux.callpath.op import OPS, Op


class DerivedOps(griffe.Extension):
    """Replaces what griffe found of a derived op by the function that users call."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Go through the modules of ops once all are read."""
        if pkg.path != "opmux":
            return
        for op in OPS.values():
            module, _, name = op.public.__module__.partition(".")
            if module != "opmux" or not name.startswith("ops."):
                continue
            derived = _derived(pkg[name])
            for found in derived & {op.name}:
                pkg[name].set_member(found, _function(op, pkg[name].members[found]))


def _derived(module: Any) -> set[str]:
    """The names in a module that are bound by `in_place` or decorated with `variant`."""
    names = set()
    for node in ast.parse(module.filepath.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and _calls(node.value, "in_place") and isinstance(node.targets[0], ast.Name):
            names.add(node.targets[0].id)
        if isinstance(node, ast.FunctionDef) and any(_calls(d, "variant") for d in node.decorator_list):
            names.add(node.name)
    return names


def _calls(node: ast.expr, function: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function


def _function(op: Op, read: Any) -> griffe.Function:
    """The op as griffe would have read it from a definition written out."""
    signature = inspect.signature(op.public)
    parameters = [
        griffe.Parameter(
            p.name,
            annotation=_text(p.annotation),
            kind=griffe.ParameterKind.keyword_only
            if p.kind is p.KEYWORD_ONLY
            else griffe.ParameterKind.positional_or_keyword,
            default=None if p.default is p.empty else repr(p.default),
        )
        for p in signature.parameters.values()
        if p.name not in ("backend", "out")
    ]
    made = griffe.Function(
        op.name,
        parameters=griffe.Parameters(*parameters),
        returns=_text(signature.return_annotation),
        lineno=read.lineno,
        endlineno=read.endlineno,
    )
    made.docstring = griffe.Docstring(op.doc, parser="google", parent=made)
    return made


def _text(annotation: Any) -> str:
    """An annotation as it is written in the definitions."""
    if annotation is None:
        return "None"
    text = annotation.__name__ if isinstance(annotation, type) and not hasattr(annotation, "dim_str") else None
    if text is None and hasattr(annotation, "dim_str"):
        text = f'{annotation.dtype.__name__}[Tensor, "{annotation.dim_str}"]'
    if text is None and getattr(annotation, "__args__", ()):
        inner = [_text(a) for a in annotation.__args__]
        union = not str(annotation).startswith("tuple")
        text = " | ".join(inner) if union else f"tuple[{', '.join(inner)}]"
    text = "None" if text == "NoneType" else text
    return text or str(annotation)
