"""`define_op`: from one definition to the public function, its registration, its gradient, its first implementation."""

import functools
import inspect
import keyword
import pkgutil
import sys
from collections.abc import Callable, Iterable, Mapping
from types import GenericAlias
from typing import Any, Generic, Protocol, TypeVar, overload

from opmux import __about__
from opmux.callpath import names
from opmux.callpath.op import OPS, Op
from opmux.callpath.plans import Front, Recording
from opmux.declared.caveats import Caveat
from opmux.declared.implementation import Implementation, Priority
from opmux.planning import dispatch
from opmux.running import execution
from opmux.running.attempt import FUNCTIONAL, FUNCTIONAL_BACKEND
from opmux.running.modes import deterministic_mode
from opmux.running.outputs import WRITER
from opmux.signatures.output_dtypes import Accumulated, Chosen, OutputDtype, Widened
from opmux.signatures.signature import GENERATED, REFUSED, Signature, read_signature
from opmux.torch_bridge import direct, generated_gradients, routing, torch_library

Result = TypeVar("Result")

__all__ = ["GENERATED", "REFUSED", "Accumulated", "Caveat", "Chosen", "OpFunction", "Widened", "define_op"]


class OpFunction(Protocol, Generic[Result]):
    """An op as users see it: a function with a few attributes."""

    op: Op
    reference: Callable[..., Result]
    __name__: str
    __doc__: str | None

    def __call__(self, *tensors: Any, **options: Any) -> Result:
        """Run the best implementation for this call."""

    def bind(self, *tensors: Any, backend: str | None = None, **options: Any) -> Callable[..., Result]:
        """Plan for these arguments and return the planned target with its options fixed.

        The returned function takes tensors like the given ones, without validation, gradient, quarantine or compile
        support.
        """


@overload
def define_op(fn: Callable[..., Result], /) -> OpFunction[Result]: ...
@overload
def define_op(**declaration: Any) -> Callable[[Callable[..., Result]], OpFunction[Result]]: ...


def define_op(fn: Callable[..., Any] | None = None, /, **declaration: Any) -> Any:
    """Define an op from its reference: annotated signature, docstring, body in plain PyTorch.

    Args:
        fn: the reference. Tensors are positional and annotated with shapes (``Real[Tensor, "*tokens hidden"]``),
            options are keyword-only.
        **declaration: what the signature cannot express; see `_define`.

    Returns:
        The public function.

    Raises:
        TypeError: where opmux does not support the definition.
    """
    if fn is None:
        return lambda function: _define(function, **declaration)
    return _define(fn)


def _define(
    fn: Callable[..., Any],
    *,
    outputs: tuple[str, ...] = ("out",),
    out_dtype: Mapping[str, OutputDtype] | None = None,
    out_strides: Mapping[str, Callable[..., tuple[int, ...]]] | None = None,
    require: tuple[tuple[Any, ...], ...] = (),
    same_dtype: tuple[tuple[str, ...], ...] = (),
    scales: Mapping[str, str] | None = None,
    mutates: tuple[str, ...] = (),
    option_dtypes: Mapping[str, Any] | None = None,
    reduced: Mapping[str, str] | None = None,
    in_place_of: str | None = None,
    gradient: str = REFUSED,
    gradient_through: str | None = None,
    check_data: Callable[..., None] | None = None,
    flops: str | Callable[..., float] | None = None,
    flops_bound: str | None = None,
    touched: Mapping[str, str] | None = None,
    capturable: bool = True,
    generated: bool = False,
    caveats: tuple[Caveat, ...] = (),
) -> Any:
    """Define one op.

    Args:
        outputs: names of the outputs, in order.
        out_dtype: the dtype of outputs whose dtype is not the first tensor's: the name of a tensor, the name of an
            option that holds a dtype, `Accumulated`, `Widened`, `Chosen`, or a ``torch.dtype``.
        out_strides: for outputs that are not contiguous, a function of (shape, options).
        require: (expression over dims, options and the presence of tensors, what it means); as a third, a function from
            the dims of a call that breaks it to the argument that is wrong and what is expected of it.
        same_dtype: groups of tensors that must have equal dtypes. After a first one of real numbers, the others may all
            be of one 8-bit dtype, if ``scales`` names them.
        scales: tensors that may hold 8-bit codes -> the argument with their scale, refused beside real numbers.
        mutates: tensors that are written; the op then returns nothing.
        option_dtypes: dtype option -> the dtype group that it must belong to.
        reduced: output -> the option that reduces it to one number: a string of choices, of which ``"none"`` leaves the
            output as its annotation says. A backward op gets the gradient of such an output in the annotated shape:
            where the output is one number, every element is the gradient of that number.
        in_place_of: the functional op whose outputs are written into ``mutates``, in order; the body is then not used.
        gradient: the backward op's name, ``GENERATED`` or ``REFUSED``.
        gradient_through: the op that runs instead when a gradient is due.
        check_data: reads index data on the device and raises `InvalidArgument` where it is bad.
        flops: the number of floating-point operations: an expression over dims and options, or a function of all
            arguments by name where the count depends on index data.
        flops_bound: where ``flops`` is such a function, an expression over dims and options for the longest call: times
            of calls are predicted by it, since a prediction reads no data.
        touched: tensors of which a call touches a part only -> an expression for how many elements the longest call
            touches.
        capturable: the reference reads no data on the host.
        generated: this is a backward op made by `_define_generated_backward`.
        caveats: what the op leaves unspecified; implementations that differ from the reference there declare it.
    """
    name = fn.__name__
    # A module that runs again, after an interrupted import or a reload, replaces its own earlier definitions.
    if name in OPS and _DEFINED_AT.get(name) != _place_of(fn):
        raise TypeError(f"{name}: an op of that name is defined already, by {OPS[name].reference.__module__}")
    _check_name(name)
    python_signature = inspect.signature(fn)
    signature = read_signature(
        name,
        python_signature,
        outputs=outputs,
        out_dtype=out_dtype,
        out_strides=out_strides,
        require=require,
        same_dtype=same_dtype,
        scales=scales,
        mutates=mutates,
        option_dtypes=option_dtypes,
        reduced=reduced,
    )
    names.check_names(signature)
    reference = fn if in_place_of is None else _copying(OPS[in_place_of].reference, signature)
    op = Op(
        name,
        fn.__module__.rpartition(".")[2],
        signature,
        reference,
        inspect.cleandoc(fn.__doc__ or ""),
        f"{name}_backward" if gradient == GENERATED else gradient,
        gradient_through,
        in_place_of,
        check_data,
        flops,
        flops_bound,
        dict(touched or {}),
        capturable,
        generated,
        caveats,
        on_miss=dispatch.plan_and_run,
        recorder=direct.recorded,
        writer=WRITER,
    )
    public = _publish(op, python_signature, fn.__module__)
    _DEFINED_AT[name] = _place_of(fn)
    if gradient == GENERATED:
        _define_generated_backward(op, python_signature)
    return public


_DEFINED_AT: dict[str, tuple[str, int]] = {}
"""Op name -> file and line of its definition."""


def _place_of(fn: Callable[..., Any]) -> tuple[str, int]:
    return inspect.unwrap(fn).__code__.co_filename, inspect.unwrap(fn).__code__.co_firstlineno


def _check_name(name: str) -> None:
    """Refuse a name under which the op could not be an attribute of `opmux` and of ``torch.ops.opmux``.

    Raises:
        TypeError: says what already has the name.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise TypeError(f"{name}: an op's name is a public Python identifier; define it by `def` under such a name")
    package = sys.modules["opmux"]
    if name in vars(package) or name in _modules():
        raise TypeError(f"{name}: `opmux.{name}` is part of opmux itself; give the op a name of its own")
    if name in _OF_TORCH_NAMESPACE:
        raise TypeError(f"{name}: `torch.ops.opmux.{name}` is an attribute of torch's own; give the op another name")


_OF_TORCH_NAMESPACE = frozenset({"name"})
"""Public attributes of every ``torch.ops`` namespace."""


@functools.cache
def _modules() -> frozenset[str]:
    """The names of opmux's modules and packages, imported or not."""
    return frozenset(module.name for module in pkgutil.iter_modules(sys.modules["opmux"].__path__))


def _copying(functional: Callable[..., Any], signature: Signature) -> Callable[..., None]:
    """The in-place form of a function: copies its results into the mutated tensors."""
    places = [i for i, t in enumerate(signature.tensors) if t.name in signature.mutates]

    def in_place(*tensors: Any, **options: Any) -> None:
        results = functional(*tensors, **options)
        for place, result in zip(places, results if isinstance(results, tuple) else (results,), strict=True):
            tensors[place].copy_(result)

    return in_place


def _publish(op: Op, python_signature: inspect.Signature, module: str) -> Any:
    """Compile the call path, register the op with torch, and add the core's own implementations."""

    def slow(*tensors: Any, backend: str | None, out: Any = None, **options: Any) -> Any:
        return routing.call(op, tensors, options, backend, out)

    def recover(error: Exception, front: Front | Recording, /, *tensors: Any, out: Any = None, **options: Any) -> Any:
        return execution.recover(op, error, front, tensors, options, front.backend, out)

    names.bind(op.namespace, op.absent, slow=slow, recover=recover, deterministic=deterministic_mode)
    op.set_implementations(_own_implementations(op))
    torch_library.register(op)
    OPS[op.name] = op
    public: Any = op.public
    public.op = op
    public.reference = op.reference
    public.bind = _binder(op)
    public.__module__ = module
    public.__doc__ = f"{op.doc}\n\n{_COMMON_OUT if op.signature.takes_out else ''}{_COMMON_BACKEND}"
    public.__signature__ = _public_signature(op, python_signature)
    public.__annotations__ = {p.name: p.annotation for p in public.__signature__.parameters.values()}
    return public


_COMMON_OUT = "``out=`` takes the tensor (a tuple for several outputs) to write into; it does not support autograd.\n"
_COMMON_BACKEND = (
    '``backend=`` takes a backend or implementation by name ("triton", "triton:rows"): that one or an error.'
)


def _public_signature(op: Op, written: inspect.Signature) -> inspect.Signature:
    keyword = inspect.Parameter.KEYWORD_ONLY
    extra = [inspect.Parameter("backend", keyword, default=None, annotation=str | None)]
    if op.signature.takes_out:
        extra.append(inspect.Parameter("out", keyword, default=None, annotation=Any))
    return written.replace(parameters=[*written.parameters.values(), *extra])


def _own_implementations(op: Op) -> tuple[Implementation, ...]:
    """The reference; for an in-place op also the functional op followed by a copy."""
    reference = Implementation(
        op=op.name,
        target=op.reference,
        priority=Priority.REFERENCE,
        backend="reference",
        capturable=op.capturable,
        deterministic=True,
        distribution="opmux",
        version=__about__.__version__,
    )
    if op.in_place_of is None:
        return (reference,)
    functional = OPS[op.in_place_of].public

    def made_for(backend: str | None) -> Callable[..., None]:
        return _copying(lambda *t, **o: functional(*t, **o, backend=backend), op.signature)

    through = Implementation(
        op=op.name,
        target=made_for,
        name=FUNCTIONAL,
        priority=Priority.REFERENCE + 1,
        backend=FUNCTIONAL_BACKEND,
        capturable=True,
        deterministic=True,
        distribution="opmux",
        version=__about__.__version__,
    )
    return (reference, through)


def _binder(op: Op) -> Callable[..., Any]:
    def bind(*tensors: Any, backend: str | None = None, **options: Any) -> Callable[..., Any]:
        """Plan for these arguments and return the planned target with its options fixed.

        The function takes tensors like the given ones, without validation, gradient, quarantine or compile support.
        It stays on its target when the policy changes, and turns autocast off only if it was bound under autocast.
        """
        return dispatch.bind(op, tensors, options, backend)

    return bind


def _define_generated_backward(op: Op, forward: inspect.Signature) -> None:
    """Define a backward op that runs the reference's autograd, for an op without a backward definition."""
    positional, keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    returned = forward.return_annotation
    annotations = returned.__args__ if len(op.signature.outputs) > 1 else (returned,)
    grads = [
        inspect.Parameter(f"grad_{output.name}", positional, annotation=annotation)
        for output, annotation in zip(op.signature.outputs, annotations, strict=True)
    ]
    tensors = [forward.parameters[t.name] for t in op.signature.tensors]
    options = [forward.parameters[o.name] for o in op.signature.options]
    wants = (True,) * len(tensors)
    mask = inspect.Parameter("output_mask", keyword, default=wants, annotation=_tuple_of(bool for _ in wants))
    results = _tuple_of(_shape_of(p) for p in tensors)
    ordered = [*grads, *(p for p in tensors if p.default is p.empty), *(p for p in tensors if p.default is not p.empty)]
    signature = inspect.Signature([*ordered, *options, mask], return_annotation=results)
    tensor_names = [p.name for p in ordered]

    def reference(*arguments: Any, output_mask: tuple[bool, ...] = wants, **given: Any) -> Any:
        named = {**dict(zip(tensor_names, arguments, strict=True)), **given}
        return generated_gradients.run_reference_backward(op, named, output_mask)

    reference.__name__ = f"{op.name}_backward"
    reference.__module__ = op.reference.__module__
    reference.__doc__ = (
        f"Gradients of `{op.name}`, by the autograd of its reference.\n\n"
        "``output_mask`` says which are wanted; the others are empty."
    )
    reference.__signature__ = signature  # type: ignore[attr-defined]
    public = _define(
        reference,
        outputs=tuple(f"grad_{p.name}" for p in tensors),
        out_dtype={f"grad_{p.name}": p.name for p in tensors},
        require=tuple((r.expression, r.meaning, r.blame) for r in op.signature.require),
        capturable=op.capturable,
        generated=True,
        caveats=op.caveats,
    )
    public.__module__ = "opmux"  # it is no module's global; `opmux` finds it by name, as pickle needs


def _tuple_of(elements: Iterable[Any]) -> Any:
    """The annotation ``tuple[a, b, ...]``."""
    return GenericAlias(tuple, tuple(elements))


def _shape_of(parameter: inspect.Parameter) -> Any:
    annotation = parameter.annotation
    return next((a for a in getattr(annotation, "__args__", ()) if hasattr(a, "dim_str")), annotation)
