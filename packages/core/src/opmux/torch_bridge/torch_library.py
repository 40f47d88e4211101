"""The registered form of every op, ``torch.ops.opmux.X``: schema, fake function, kernel, autograd.

Compiled and exported graphs hold these ops; the plan is chosen when the graph runs.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from opmux.callpath import codegen, names
from opmux.callpath.op import PLAIN, Op
from opmux.errors import UnsupportedCall
from opmux.plugins import loading
from opmux.running import execution, outputs
from opmux.signatures.outputs import several
from opmux.signatures.signature import Option, Signature
from opmux.signatures.validation import check_call
from opmux.torch_bridge import autograd, flops

_LIBRARIES: dict[str, torch.library.Library] = {}
"""Op name -> its own registration, so that redefining an op replaces only that op."""


class _Namespace(type(torch.ops.opmux)):  # type: ignore[misc]
    """``torch.ops.opmux``, which loads the plugins when asked for an op that is not registered, and looks again.

    This lets an exported program with a plugin's op load in a process that has only imported opmux.
    """

    __module__ = type(torch.ops.opmux).__module__  # torch derives the ops' module names from it

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            # Library.define looks up the op that it is about to define: those in `_LIBRARIES` need no plugin.
            if name.startswith("_") or name in _LIBRARIES or not loading.ensure_loaded():
                raise
            return super().__getattr__(name)


torch.ops.opmux.__class__ = _Namespace

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
    value = option.default
    if option.required or isinstance(value, torch.dtype):  # a schema has no dtype defaults: required there
        return ""
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
        name, keyword = f"{name}.out", keyword + [f"Tensor({next(alias)}!) {n}" for n in names.results(signature)]
    if out or signature.mutates:
        returned = "()"
    elif len(signature.outputs) > 1:
        returned = f"({returned})"
    return f"{name}({', '.join([*parts, '*', *keyword])}) -> {returned}"


Handler = Callable[[tuple[Any, ...], dict[str, Any], str | None, Any], Any]


def gathering(signature: Signature, handler: Handler, out: bool = False) -> Callable[..., Any]:
    """A function with the op's parameters that passes all of them to ``handler``, as the dispatcher drops defaults.

    The lists that the dispatcher makes of tuples become tuples again.
    """
    made: list[Callable[..., Any]] = []

    def gathered(*arguments: Any, **keywords: Any) -> Any:
        # Generated and compiled on first use: import stays cheap, and most are never used.
        if not made:
            namespace = {names.HANDLER.text: handler, names.TORCH.text: torch}
            made.append(codegen.compile_function("gathered", gathering_source(signature, out), namespace))
        return made[0](*arguments, **keywords)

    return gathered


def gathering_source(signature: Signature, out: bool) -> str:
    """The source of the function that `gathering` makes."""
    outs = names.results(signature) if out else []
    tensors = "".join(f"{t.name}, " for t in signature.tensors)
    options = ", ".join(
        f"{o.name!r}: {'tuple(' + o.name + ')' if o.kind in ('ints', 'bools') else o.name}" for o in signature.options
    )
    gathered_out = "None" if not out else (outs[0] if len(outs) == 1 else f"({', '.join(outs)})")
    parameter_list = codegen.parameters(signature, ["backend=None", *outs])
    return (
        f"def gathered({parameter_list}):\n"
        f"    return {names.HANDLER}(({tensors}), {{{options}}}, backend, {gathered_out})\n"
    )


def call(op: Op, tensors: Sequence[Any], options: Mapping[str, Any], backend: str | None, out: Any = None) -> Any:
    """Run an op through its registration, as a call of ``torch.ops`` would."""
    packet = getattr(torch.ops.opmux, op.name)
    if out is None:
        return packet.default(*tensors, **options, backend=backend)
    packet.out(
        *tensors, **options, backend=backend, **dict(zip(names.results(op.signature), several(out), strict=True))
    )
    return out


def is_needed(tensors: Sequence[Any]) -> bool:
    """Whether a mode, transform or tensor subclass is involved: these must see one op, not its implementation."""
    for tensor in tensors:  # a loop: this runs at every op of compiled code, and a generator takes twice the time
        if tensor is not None and tensor.__class__ not in PLAIN:
            return True
    return bool(
        torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack() or autograd.under_transform()
    )


def _call_below(
    op: Op, tensors: Sequence[Any], options: Mapping[str, Any], backend: str | None, out: Any = None
) -> Any:
    with autograd.below_autograd():
        return call(op, tensors, options, backend, out)


def _differentiable(op: Op) -> Handler:
    """The kernel of autograd's dispatch keys.

    Where nothing else is to see the op, as in compiled code at run time, it is called here as in eager code: passing
    through the dispatcher again would take most of the host's time. Inference tensors have no autograd keys, and pass
    it once in any case.
    """

    def differentiable(tensors: tuple[Any, ...], options: dict[str, Any], backend: str | None, out: Any) -> Any:
        if out is None and not is_needed(tensors):
            results = op.public(*tensors, **options, backend=backend)
            return None if op.signature.mutates else results
        flops.count_where_counted()
        if (out is not None or op.signature.mutates) and autograd.under_transform():
            raise no_transform(op, "out=" if out is not None else "it writes into its arguments, which")
        if out is None:
            return autograd.call(op, tensors, options, backend, _call_below)
        autograd.refuse_with_out(op, (*tensors, *several(out)))
        _call_below(op, tensors, options, backend, out)
        return None

    return differentiable


def _batched(op: Op) -> Handler:
    """The kernel of vmap's dispatch key."""

    def batched(tensors: tuple[Any, ...], options: dict[str, Any], backend: str | None, out: Any) -> Any:
        raise UnsupportedCall(
            f"{op.name}: torch.func.vmap is not supported; loop over the batch, "
            "or pass it as one of the leading dims where the op takes them"
        )

    return batched


def _batched_gradients(op: Op) -> Handler:
    """The kernel of the older vmap, which torch.autograd still uses to compute several gradients at once."""

    def batched(tensors: tuple[Any, ...], options: dict[str, Any], backend: str | None, out: Any) -> Any:
        autograd.refuse_batched(op, (*tensors, *several(out)))

    return batched


def no_transform(op: Op, what: str) -> UnsupportedCall:
    """The error for something that torch.func transforms do not support."""
    return UnsupportedCall(
        f"{op.name}: {what} is not supported under torch.func transforms; call it outside the transform"
    )


def _fake(op: Op) -> Handler:
    """The kernel that computes shapes, for meta and fake tensors."""

    def fake(tensors: tuple[Any, ...], options: dict[str, Any], backend: str | None, out: Any) -> Any:
        # Loading plugins rewrites call paths: do it here, before Dynamo guards on them; the kernel would be too late.
        loading.ensure_loaded()
        named = op.names(tensors)
        dims, normal = check_call(op.signature, named, options)
        if out is not None:
            outputs.check_out(op, out, named, dims, normal)
        if op.signature.mutates or out is not None:
            return None
        results = op.signature.empty_outputs(named, dims, normal)
        return results[0] if len(results) == 1 else results

    return fake


@functools.cache
def fits(op: Op) -> Callable[..., bool]:
    """A function that tells whether a call's shapes match the signature, as cheaply as on the fast path."""
    return codegen.compile_function(names.FITS.text, codegen.fits_source(op.signature), dict(op.namespace))


def _kernel(op: Op) -> Handler:
    """The kernel that computes."""

    def kernel(tensors: tuple[Any, ...], options: dict[str, Any], backend: str | None, out: Any) -> Any:
        with torch.no_grad():
            if out is not None or not fits(op)(*tensors, **options):
                named = op.names(tensors)
                dims, options = check_call(op.signature, named, options)
                if out is not None:
                    outputs.check_out(op, out, named, dims, options)
            results = execution.execute(op, tensors, options, backend, out)
        return None if out is not None else results

    return kernel


def register(op: Op) -> None:
    """Register an op, and its ``.out`` overload if it has one; replaces an earlier op of that name."""
    if (former := _LIBRARIES.pop(op.name, None)) is not None:
        former._destroy()
    library = _LIBRARIES[op.name] = torch.library.Library("opmux", "FRAGMENT")
    forms = (False, True) if op.signature.takes_out else (False,)
    for out in forms:
        name = f"{op.name}.out" if out else op.name
        library.define(schema(op.signature, out), tags=(torch.Tag.pt2_compliant_tag,))
        # A Meta kernel serves fake tensors too. torch.library.register_fake would also record the caller's source
        # line, which takes 2 ms per op and would double the import time of opmux.
        for key, handler in (
            ("CompositeExplicitAutograd", _kernel(op)),
            ("Autograd", _differentiable(op)),
            ("FuncTorchBatched", _batched(op)),
            ("Batched", _batched_gradients(op)),
            ("Meta", _fake(op)),
        ):
            library.impl(name, gathering(op.signature, handler, out), key)
