"""Signatures as data: what an op takes, what it returns and what must hold, read once from its definition."""

import inspect
import itertools
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from opmux.signatures.dims import Affine, CeilQuotient, OptionValue, Shape, parse_shape
from opmux.signatures.expressions import evaluate
from opmux.signatures.output_dtypes import Chosen, OutputDtype, output_dtype

REFUSED = "refused"
AHEAD = "_gradient"
"""What ends the name of an output that holds the gradient of an argument, computed in the forward."""

UNREDUCED = "none"
"""The value of a reduction option that leaves an output as its annotation says."""

GENERATED = "generated"


@dataclass(frozen=True)
class TensorArgument:
    """A tensor of the signature; all are positional, the optional ones default to None."""

    name: str
    shape: Shape
    dtypes: frozenset[torch.dtype]
    group: str
    optional: bool


@dataclass(frozen=True)
class Option:
    """A keyword-only argument that is not a tensor.

    ``kind`` is one of float, int, bool, str, dtype, ints, bools; ``choices`` restricts a str, ``group`` a dtype.
    """

    name: str
    kind: str
    nullable: bool = False
    choices: tuple[str, ...] = ()
    length: int | None = None
    default: Any = inspect.Parameter.empty
    dtypes: frozenset[torch.dtype] = frozenset()
    group: str = ""

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty

    @property
    def is_flag(self) -> bool:
        """Whether it is part of every plan key; numbers are only where an implementation declares a feature of them."""
        return self.kind in ("bool", "str", "dtype")


@dataclass(frozen=True)
class Output:
    """A tensor that the op returns.

    Attributes:
        mask_index: its position in ``output_mask``.
        reduction: the option that reduces it to one number unless it is ``"none"``.
    """

    name: str
    shape: Shape
    dtype: OutputDtype
    strides: Callable[[tuple[int, ...], Mapping[str, Any]], tuple[int, ...]] | None = None
    mask_index: int | None = None
    reduction: str | None = None

    def is_reduced(self, options: Mapping[str, Any]) -> bool:
        """Whether the options reduce it to one number, of shape ()."""
        return self.reduction is not None and options[self.reduction] != UNREDUCED


@dataclass(frozen=True)
class Requirement:
    """A relation that shapes cannot express: a Python expression over dims, options and the presence of tensors.

    Attributes:
        meaning: what it asks for; may have expressions in braces, as ``"of shape ({m}, {-(-k // 128)})"``.
        blame: from the dims of a call that breaks it, the argument that is wrong and what is expected of its shape;
            None blames the first argument of the expression.
    """

    expression: str
    meaning: str
    blame: Callable[[Mapping[str, Any]], tuple[str, str]] | None = None

    @property
    def text(self) -> str:
        """The meaning for any call: its expressions as they are."""
        return _BRACES.sub(r"\1", self.meaning)

    def text_for(self, names: Mapping[str, Any]) -> str:
        """The meaning for one call: its expressions with the values of these names."""
        return _BRACES.sub(lambda match: str(evaluate(match[1], names)), self.meaning)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(re.findall(r"\b[a-z_]\w*\b", re.sub(r"(['\"]).*?\1", "", self.expression))))


_BRACES = re.compile(r"\{([^{}]+)\}")


@dataclass(frozen=True)
class Signature:
    """Everything that validation, schemas, fakes, gradients, docs and test cases are generated from."""

    name: str
    tensors: tuple[TensorArgument, ...]
    options: tuple[Option, ...]
    outputs: tuple[Output, ...]
    require: tuple[Requirement, ...] = ()
    same_dtype: tuple[tuple[str, ...], ...] = ()
    mutates: tuple[str, ...] = ()
    scales: Mapping[str, str] = field(default_factory=dict)
    """Tensor that may hold 8-bit codes -> the argument with their scale, which may be given for codes only."""
    binders: Mapping[str, str] = field(default_factory=dict)
    """Dim name -> the tensor that binds it, by a bare occurrence where there is one."""

    @property
    def required(self) -> tuple[TensorArgument, ...]:
        return tuple(t for t in self.tensors if not t.optional)

    def tensor(self, name: str) -> TensorArgument:
        return next(t for t in self.tensors if t.name == name)

    def is_coded(self, name: str, tensors: Mapping[str, Any]) -> bool:
        """Whether a tensor holds 8-bit codes, which an argument of its own scales."""
        return name in self.scales and tensors[name] is not None and tensors[name].dtype.itemsize == 1

    @property
    def takes_out(self) -> bool:
        """Whether the op has an ``out=`` form: it returns something, and no argument of its own is called ``out``."""
        return not self.mutates and all(t.name != "out" for t in self.tensors)

    @property
    def chosen(self) -> tuple[Chosen, ...]:
        """The rules of outputs whose dtype an option chooses."""
        return tuple(dict.fromkeys(o.dtype for o in self.outputs if isinstance(o.dtype, Chosen)))

    def settled(self, options: Mapping[str, Any], dtypes: Mapping[str, torch.dtype | None]) -> dict[str, Any]:
        """The options without those that choose for an output the dtype that it has anyway, as calls are planned."""
        anyway = {rule.option: (None, dtypes.get(rule.argument)) for rule in self.chosen}
        return {name: value for name, value in options.items() if value not in anyway.get(name, ())}

    @property
    def stars(self) -> frozenset[str]:
        return frozenset(t.shape.star for t in self.tensors if t.shape.star)

    def output_dtypes(self, tensors: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[torch.dtype, ...]:
        """The dtype of each output for these arguments."""
        dtypes = {t.name: None if (x := tensors[t.name]) is None else x.dtype for t in self.tensors}
        return tuple(output_dtype(o.dtype, dtypes, options) for o in self.outputs)

    def named(self, tensors: Sequence[Any]) -> dict[str, Any]:
        """Tensor arguments by name, given all of them in order."""
        return {argument.name: value for argument, value in zip(self.tensors, tensors, strict=True)}

    def output_shapes(self, dims: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[tuple[Any, ...], ...]:
        """The shape of each output: (0,) where ``output_mask`` does not ask for it, () where an option reduces it."""
        mask = options.get("output_mask")
        return tuple(
            (0,) if mask is not None and o.mask_index is not None and not mask[o.mask_index]
            else () if o.is_reduced(options)
            else o.shape.value(dims, options)
            for o in self.outputs
        )  # fmt: skip

    def empty_outputs(
        self, tensors: Mapping[str, Any], dims: Mapping[str, Any], options: Mapping[str, Any]
    ) -> tuple[torch.Tensor, ...]:
        """Uninitialised tensors in the form that the op returns: for fake functions, and for kernels to fill."""
        first = tensors[self.tensors[0].name]
        results = []
        dtypes = self.output_dtypes(tensors, options)
        for output, shape, dtype in zip(self.outputs, self.output_shapes(dims, options), dtypes, strict=True):
            if output.strides is None or shape == (0,):
                results.append(first.new_empty(shape, dtype=dtype))
            else:
                results.append(first.new_empty_strided(shape, output.strides(shape, options), dtype=dtype))
        return tuple(results)


def _shaped(annotation: Any) -> tuple[Shape, frozenset[torch.dtype], str]:
    return parse_shape(annotation.dim_str), _group_dtypes(annotation), annotation.dtype.__name__


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """(X | None) -> (X, True)."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        inner = [a for a in typing.get_args(annotation) if a is not type(None)]
        return inner[0], True
    return annotation, False


_SIMPLE_KINDS = {float: "float", int: "int", bool: "bool", str: "str", torch.dtype: "dtype"}


def _group_dtypes(group: Any) -> frozenset[torch.dtype]:
    return frozenset(getattr(torch, name) for name in group.dtypes if hasattr(torch, name))


def _option(parameter: inspect.Parameter, group: Any) -> Option:
    annotation, nullable = _without_none(parameter.annotation)
    choices: tuple[str, ...] = ()
    length: int | None = None
    if typing.get_origin(annotation) is typing.Literal:
        kind, choices = "str", typing.get_args(annotation)
    elif typing.get_origin(annotation) is tuple:
        of = typing.get_args(annotation)
        kind = "bools" if of[0] is bool else "ints"
        if of[-1] is not Ellipsis:
            length = len(of)
        elif isinstance(parameter.default, tuple):
            length = len(parameter.default)
    elif annotation in _SIMPLE_KINDS:
        kind = _SIMPLE_KINDS[annotation]
    else:
        raise TypeError(
            f"option `{parameter.name}` has an annotation that a torch schema cannot express: {annotation!r}"
        )
    dtypes, name = (_group_dtypes(group), group.__name__) if group is not None else (frozenset(), "")
    return Option(parameter.name, kind, nullable, choices, length, parameter.default, dtypes, name)


def _binders(tensors: tuple[TensorArgument, ...]) -> dict[str, str]:
    """Which tensor binds each dim: the first bare occurrence in a required tensor, else an affine one."""
    found: dict[str, str] = {}
    required = [t for t in tensors if not t.optional]
    for bare in (True, False):
        for tensor in required:
            if tensor.shape.star:
                found.setdefault(tensor.shape.star, tensor.name)
            for dim in tensor.shape.dims:
                if isinstance(dim, Affine) and dim.name is not None and (dim.is_bare or not bare):
                    found.setdefault(dim.name, tensor.name)
    return found


def read_signature(
    name: str,
    signature: inspect.Signature,
    *,
    outputs: tuple[str, ...] = ("out",),
    out_dtype: Mapping[str, OutputDtype] | None = None,
    out_strides: Mapping[str, Any] | None = None,
    require: tuple[tuple[Any, ...], ...] = (),
    same_dtype: tuple[tuple[str, ...], ...] = (),
    scales: Mapping[str, str] | None = None,
    mutates: tuple[str, ...] = (),
    option_dtypes: Mapping[str, Any] | None = None,
    reduced: Mapping[str, str] | None = None,
) -> Signature:
    """Read a definition's Python signature and declarations into data, and check that they make sense together.

    Raises:
        TypeError: where opmux does not support the definition; the message says what to change.
    """
    tensors: list[TensorArgument] = []
    options: list[Option] = []
    for parameter in signature.parameters.values():
        annotation, optional = _without_none(parameter.annotation)
        if hasattr(annotation, "dim_str"):
            if parameter.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
                raise TypeError(f"{name}: tensor `{parameter.name}` must be positional")
            if optional != (parameter.default is None):
                raise TypeError(f"{name}: optional tensor `{parameter.name}` must be `... | None = None`")
            tensors.append(TensorArgument(parameter.name, *_shaped(annotation), optional))
        elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            options.append(_option(parameter, (option_dtypes or {}).get(parameter.name)))
        else:
            raise TypeError(f"{name}: `{parameter.name}` is neither a shaped tensor nor a keyword-only option")
    if not tensors or tensors[0].optional:
        raise TypeError(f"{name}: the first argument must be a required tensor")

    returned: list[Any] = []
    if signature.return_annotation not in (None, type(None), inspect.Signature.empty):
        several = typing.get_origin(signature.return_annotation) is tuple
        returned = list(typing.get_args(signature.return_annotation)) if several else [signature.return_annotation]
    if mutates:
        outputs = ()
    if len(returned) != len(outputs):
        raise TypeError(f"{name}: {len(outputs)} output names for {len(returned)} returned tensors")
    dtype_of, strides_of, reduction_of = dict(out_dtype or {}), dict(out_strides or {}), dict(reduced or {})
    masked = any(o.name == "output_mask" for o in options)
    results = tuple(
        Output(
            output,
            _shaped(annotation)[0],
            dtype_of.pop(output, tensors[0].name),
            strides_of.pop(output, None),
            index if masked else None,
            reduction_of.pop(output, None),
        )
        for index, (output, annotation) in enumerate(zip(outputs, returned, strict=True))
    )
    unknown = [*dtype_of, *strides_of, *reduction_of]
    if unknown:
        raise TypeError(f"{name}: out_dtype, out_strides or reduced names no output: {unknown}")
    for result in results:
        choices = {o.name: o.choices for o in options}.get(result.reduction or "", (UNREDUCED,))
        if result.reduction is not None and (
            result.reduction not in {o.name for o in options} or len(choices) < 2 or UNREDUCED not in choices
        ):
            raise TypeError(
                f"{name}: `{result.name}` is reduced by `{result.reduction}`, which must be an option of choices "
                f"with {UNREDUCED!r} among them"
            )

    made = Signature(
        name,
        tuple(tensors),
        tuple(options),
        results,
        tuple(Requirement(*r) for r in require),
        same_dtype,
        mutates,
        dict(scales or {}),
        _binders(tuple(tensors)),
    )
    _check_references(made)
    return made


def _check_references(signature: Signature) -> None:
    options = {o.name for o in signature.options}
    arguments = {t.name for t in signature.tensors} | options
    for shape in [t.shape for t in signature.tensors] + [o.shape for o in signature.outputs]:
        for dim in shape.dims:
            part = dim.denominator if isinstance(dim, CeilQuotient) else dim
            if isinstance(part, OptionValue) and part.name not in options:
                raise TypeError(
                    f"{signature.name}: {shape.text!r} reads an option `{part.name}` that the op does not have"
                )
    clash = arguments & set(signature.binders)
    if clash:
        raise TypeError(f"{signature.name}: {sorted(clash)} name both a dim and an argument")
    for shape in [t.shape for t in signature.tensors] + [o.shape for o in signature.outputs]:
        for used in shape.names():
            if used not in signature.binders:
                raise TypeError(f"{signature.name}: no required tensor binds dim `{used}` of {shape.text!r}")
    scaled = itertools.chain.from_iterable(signature.scales.items())
    for name in (*signature.mutates, *(n for group in signature.same_dtype for n in group), *scaled):
        if name not in arguments:
            raise TypeError(f"{signature.name}: `{name}` is not an argument")
    required = {t.name for t in signature.required}
    for rule in signature.chosen:
        option = next((o for o in signature.options if o.name == rule.option), None)
        if option is None or option.kind != "dtype" or option.default is not None:
            raise TypeError(
                f"{signature.name}: `{rule.option}` chooses the dtype of an output, so it must be an option "
                "`torch.dtype | None = None`"
            )
        if rule.argument not in required:
            raise TypeError(f"{signature.name}: `{rule.argument}` is not a required tensor, as {rule!r} needs it")
