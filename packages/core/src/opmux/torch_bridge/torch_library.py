"""The registered form of every op, ``torch.ops.opmux.X``: schema, fake function, kernel, autograd.

A compiled or exported graph holds these; the plan is chosen when the graph runs.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from opmux.callpath import codegen
from opmux.callpath.op import Op
from opmux.errors import UnsupportedCall
from opmux.plugins import loading
from opmux.running import execution, outputs
from opmux.signatures.signature import Option, Signature
from opmux.signatures.validation import check_call
from opmux.torch_bridge import autograd, flops

_LIBRARIES: dict[str, torch.library.Library] = {}
"""Op name -> its registration: one each, so that an op that is defined again can replace its former one."""


class _Namespace(type(torch.ops.opmux)):  # type: ignore[misc]
    """``torch.ops.opmux``: asked for an op that is not registered yet, it loads the plugins and looks again.

    So an exported program that holds a plugin's op loads in a process that has only imported opmux.
    """

    __module__ = type(torch.ops.opmux).__module__  # torch names the ops' modules after it

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            # Library.define asks for the op that it is about to define: those of `_LIBRARIES` need no plugin.
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
    if option.required or isinstance(value, torch.dtype):  # a schema cannot spell a dtype: there it must be passed
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
    """A function with the op's parameters that passes them to ``handler`` in full: the dispatcher drops defaults.

    Lists, as the dispatcher passes tuples, become tuples again.
    """
    made: list[Callable[..., Any]] = []

    def gathered(*arguments: Any, **keywords: Any) -> Any:
        # Written and compiled at the first use: import stays cheap, and most are never used.
        if not made:
            namespace = {"_handler": handler, "torch": torch}
            made.append(codegen.compile_function("gathered", gathering_source(signature, out), namespace))
        return made[0](*arguments, **keywords)

    return gathered


def gathering_source(signature: Signature, out: bool) -> str:
    """The source of `gathering`'s function."""
    outs = out_names(signature) if out else []
    tensors = "".join(f"{t.name}, " for t in signature.tensors)
    options = ", ".join(
        f"{o.name!r}: {'tuple(' + o.name + ')' if o.kind in ('ints', 'bools') else o.name}" for o in signature.options
    )
    gathered_out = "None" if not out else (outs[0] if len(outs) == 1 else f"({', '.join(outs)})")
    parameter_list = codegen.parameters(signature, ["backend=None", *outs])
    return (
        f"def gathered({parameter_list}):\n    return _handler(({tensors}), {{{options}}}, backend, {gathered_out})\n"
    )


def call(op: Op, tensors: Sequence[Any], options: Mapping[str, Any], backend: str | None, out: Any = None) -> Any:
    """Run an op through its registration, as a user of ``torch.ops`` would."""
    packet = getattr(torch.ops.opmux, op.name)
    if out is None:
        return packet.default(*tensors, **options, backend=backend)
    packet.out(*tensors, **options, backend=backend, **dict(zip(out_names(op.signature), _several(out), strict=True)))
    return out


def _several(out: Any) -> tuple[Any, ...]:
    return tuple(out) if isinstance(out, (tuple, list)) else (out,)


def _call_below(
    op: Op, tensors: Sequence[Any], options: Mapping[str, Any], backend: str | None, out: Any = None
) -> Any:
    with autograd.below_autograd():
        return call(op, tensors, options, backend, out)


def _differentiable(op: Op) -> Handler:
    """The kernel of autograd's dispatch keys."""

    def differentiable(tensors: tuple[Any, ...], options: dict[str, Any], backend: str | None, out: Any) -> Any:
        flops.count_where_counted()
        if (out is not None or op.signature.mutates) and autograd.under_transform():
            raise no_transform(op, "out=" if out is not None else "it writes into its arguments, which")
        if out is None:
            return autograd.call(op, tensors, options, backend, _call_below)
        autograd.refuse_with_out(op, (*tensors, *_several(out)))
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
        autograd.refuse_batched(op, (*tensors, *(_several(out) if out is not None else ())))

    return batched


def no_transform(op: Op, what: str) -> UnsupportedCall:
    """The complaint about something that torch.func transforms cannot see through."""
    return UnsupportedCall(
        f"{op.name}: {what} is not supported under torch.func transforms; call it outside of the transform"
    )


def _fake(op: Op) -> Handler:
    """The kernel that computes shapes, for meta and fake tensors."""

    def fake(tensors: tuple[Any, ...], options: dict[str, Any], backend: str | None, out: Any) -> Any:
        # Loading rewrites call paths: here it comes before Dynamo's guards on them, in the kernel it would come after.
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
    """The function that tells whether a call's shapes are the signature's, at the cost of the direct way."""
    return codegen.compile_function("_fits", codegen.fits_source(op.signature), dict(op.namespace))


def _kernel(op: Op) -> Handler:
    """The kernel that computes."""

    def kernel(tensors: tuple[Any, ...], options: dict[str, Any], backend: str | None, out: Any) -> Any:
        with torch.no_grad():
            if out is not None or not fits(op)(*tensors, **options):
                named = op.names(tensors)
                dims, normal = check_call(op.signature, named, options)
                if out is not None:
                    outputs.check_out(op, out, named, dims, normal)
            results = execution.execute(op, tensors, options, backend, out)
        return None if out is not None else results

    return kernel


def register(op: Op) -> None:
    """Register an op, and its ``.out`` overload where it has one; replaces the former op of that name."""
    if (former := _LIBRARIES.pop(op.name, None)) is not None:
        former._destroy()
    library = _LIBRARIES[op.name] = torch.library.Library("opmux", "FRAGMENT")
    forms = (False, True) if op.signature.takes_out else (False,)
    for out in forms:
        name = f"{op.name}.out" if out else op.name
        library.define(schema(op.signature, out), tags=(torch.Tag.pt2_compliant_tag,))
        # A Meta kernel serves fake tensors too. torch.library.register_fake would also note down the caller's source
        # line, which takes 2 ms an op and would double the time that importing opmux takes.
        for key, handler in (
            ("CompositeExplicitAutograd", _kernel(op)),
            ("Autograd", _differentiable(op)),
            ("FuncTorchBatched", _batched(op)),
            ("Batched", _batched_gradients(op)),
            ("Meta", _fake(op)),
        ):
            library.impl(name, gathering(op.signature, handler, out), key)
