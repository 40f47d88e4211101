"""The registered form of every op, ``torch.ops.opmux.X``: schema, fake function, kernel, autograd.

A compiled or exported graph holds these; the plan is chosen when the graph runs.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from opmux import autograd, codegen, dispatch, loading
from opmux.op import OPS, Op
from opmux.signature import Option, Signature
from opmux.validation import check_call

_LIBRARY = torch.library.Library("opmux", "FRAGMENT")
_KINDS = {
    "float": "float",
    "int": "SymInt",
    "bool": "bool",
    "str": "str",
    "dtype": "ScalarType",
    "ints": "SymInt[]",
    "bools": "bool[]",
}


def _schema_default(option: Option) -> str:
    if option.required:
        return ""
    value = option.default
    if isinstance(value, tuple):
        return f"=[{', '.join(str(v) for v in value)}]"
    if isinstance(value, str):
        return f'="{value}"'
    return f"={value}"


def schema(signature: Signature, out: bool = False) -> str:
    """The op's torch schema; with ``out``, that of its ``.out`` overload, which mutates and returns nothing."""
    alias = iter("abcdefgh")
    parts = []
    for tensor in signature.tensors:
        kind = "Tensor"
        if tensor.name in signature.mutates:
            kind += f"({next(alias)}!)"
        parts.append(f"{kind}{'? ' if tensor.optional else ' '}{tensor.name}{'=None' if tensor.optional else ''}")
    keyword = [
        f"{_KINDS[o.kind]}{'?' if o.nullable else ''} {o.name}{_schema_default(o)}" for o in signature.options
    ] + ["str? backend=None"]
    name, returned = signature.name, ", ".join("Tensor" for _ in signature.outputs)
    if out:
        name, keyword = f"{name}.out", keyword + [f"Tensor({next(alias)}!) {n}" for n in out_names(signature)]
    if out or signature.mutates:
        returned = "()"
    elif len(signature.outputs) > 1:
        returned = f"({returned})"
    return f"{name}({', '.join([*parts, '*', *keyword])}) -> {returned}"


def out_names(signature: Signature) -> list[str]:
    """The names of the tensors that the ``.out`` overload writes."""
    return ["out"] if len(signature.outputs) == 1 else [f"out_{o.name}" for o in signature.outputs]


Handler = Callable[[tuple[Any, ...], dict[str, Any], str | None, Any], Any]


def gathering(signature: Signature, handler: Handler, out: bool = False) -> Callable[..., Any]:
    """A function with the op's own parameters that hands them to ``handler`` gathered: the dispatcher drops defaults.

    Lists, as the dispatcher passes tuples, become tuples again.
    """
    outs = out_names(signature) if out else []
    tensors = "".join(f"{t.name}, " for t in signature.tensors)
    options = ", ".join(
        f"{o.name!r}: {'tuple(' + o.name + ')' if o.kind in ('ints', 'bools') else o.name}" for o in signature.options
    )
    gathered_out = "None" if not out else (outs[0] if len(outs) == 1 else f"({', '.join(outs)})")
    parameter_list = codegen.parameters(signature, ["backend=None", *outs])
    source = (
        f"def gathered({parameter_list}):\n    return _handler(({tensors}), {{{options}}}, backend, {gathered_out})\n"
    )
    return codegen.compile_function("gathered", source, {"_handler": handler, "torch": torch})


def _fake(op: Op) -> Handler:
    def fake(tensors: tuple[Any, ...], options: dict[str, Any], backend: str | None, out: Any) -> Any:
        loading.ensure_loaded()
        named = op.names(tensors)
        dims, normal = check_call(op.signature, named, options)
        if op.signature.mutates or out is not None:
            return None
        results = op.signature.empty_outputs(named, dims, normal)
        return results[0] if len(results) == 1 else results

    return fake


def _kernel(op: Op) -> Handler:
    def kernel(tensors: tuple[Any, ...], options: dict[str, Any], backend: str | None, out: Any) -> Any:
        with torch.no_grad():
            results = dispatch.execute(op, tensors, options, backend, out)
        return None if out is not None else results

    return kernel


def invoke_registered(op: Op, tensors: Sequence[Any], options: Mapping[str, Any], backend: str | None) -> Any:
    """Run an op through its registration, below autograd: tracing sees it."""
    with torch._C._AutoDispatchBelowAutograd():
        return overload(op)(*tensors, **options, backend=backend)


def overload(op: Op) -> Any:
    """``torch.ops.opmux.X.default``."""
    return getattr(torch.ops.opmux, op.name).default


def _autograd(op: Op) -> Handler:
    def differentiable(tensors: tuple[Any, ...], options: dict[str, Any], backend: str | None, out: Any) -> Any:
        if autograd.gradient_due(tensors):
            return autograd.differentiable_call(op, tensors, options, backend, invoke_registered)
        return invoke_registered(op, tensors, options, backend)

    return differentiable


def _autograd_out(op: Op) -> Handler:
    def undifferentiable(tensors: tuple[Any, ...], options: dict[str, Any], backend: str | None, out: Any) -> None:
        dispatch.refuse_gradient_with_out(op, tensors)
        outs = out if isinstance(out, tuple) else (out,)
        with torch._C._AutoDispatchBelowAutograd():
            arguments = dict(zip(out_names(op.signature), outs, strict=True))
            getattr(torch.ops.opmux, op.name).out(*tensors, **options, backend=backend, **arguments)

    return undifferentiable


def register(op: Op) -> None:
    """Register an op, and its ``.out`` overload where it has one."""
    signature = op.signature
    _register(signature.name, schema(signature), signature, _kernel(op), _autograd(op), _fake(op))
    if signature.takes_out:
        _register(
            f"{signature.name}.out", schema(signature, out=True), signature, _kernel(op), _autograd_out(op), _fake(op)
        )


def _register(
    name: str, text: str, signature: Signature, kernel: Handler, differentiable: Handler, fake: Handler
) -> None:
    out = name.endswith(".out")
    _LIBRARY.define(text)
    _LIBRARY.impl(name, gathering(signature, kernel, out), "CompositeExplicitAutograd")
    _LIBRARY.impl(name, gathering(signature, differentiable, out), "Autograd")
    torch.library.register_fake(f"opmux::{name}", gathering(signature, fake, out), lib=_LIBRARY)


def registered_ops() -> list[str]:
    """The names of all ops that are registered."""
    return sorted(OPS)
