"""How each op is recorded: what its backward op needs, where it comes from, and which gradients it returns.

Everything follows from names: each tensor argument of the backward op is an argument of the forward, one of its
results, or ``grad_<result>``; each output is ``grad_<argument>``. A variant that computes gradients in the forward
returns them as ``<argument>_gradient``.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from opmux.callpath.op import OPS, Op
from opmux.errors import GradientRefused
from opmux.signatures.output_dtypes import Chosen
from opmux.signatures.signature import AHEAD, REFUSED, Output
from opmux.signatures.validation import bind_dims

Form = tuple[tuple[Any, ...], torch.dtype]
"""The shape and dtype of an output."""


@dataclass(frozen=True)
class Source:
    """Where an argument of the backward op comes from: ``kind`` is input, result or grad, ``place`` its position."""

    kind: str
    place: int
    optional: bool


@dataclass(frozen=True)
class Recipe:
    """How an op is recorded, found once from the names of its backward op's arguments.

    Attributes:
        variant: the op that runs in place of this one when a gradient is due.
        sources: the source of each tensor argument of the backward op, in order.
        differentiated: the positions of the forward's tensors that the backward op differentiates, in its order.
        others: the positions of the forward's other tensors.
        option_names: the options that the backward op shares with the forward.
        masked: the variant takes an ``output_mask``: besides the outputs of the op it computes gradients.
        narrowed: results whose dtype an option chooses, which the backward op does not take: it expects their gradients
            in the dtype of the argument at this position, and they are rounded to it.
    """

    op: Op
    variant: Op
    backward: Op
    sources: tuple[Source, ...]
    differentiated: tuple[int, ...]
    others: tuple[int, ...]
    option_names: tuple[str, ...]
    masked: bool = False
    narrowed: Mapping[int, int] = field(default_factory=dict)

    def forward_options(
        self, wanted: Sequence[bool], options: Mapping[str, Any], tensors: Sequence[Any]
    ) -> Mapping[str, Any]:
        """The options of the variant.

        Gradients are computed ahead for what wants them, as multiples of one incoming number: for outputs that are
        not reduced to one, the backward op computes them. It also computes sums over all tokens in float16, which may
        overflow before that number makes them small.

        Args:
            wanted: which of the op's tensors need a gradient.
            options: the options of the op.
            tensors: the tensors of the op.
        """
        if not self.masked or self.op is self.variant:
            return options
        outputs = self.op.signature.outputs
        ahead = all(o.is_reduced(options) for o in outputs)
        places = {t.name: i for i, t in enumerate(self.op.signature.tensors)}
        computed = self.variant.signature.outputs[len(outputs) :]

        def due(gradient: Output) -> bool:
            place = places[gradient.name.removesuffix(AHEAD)]
            overflows = gradient.shape.star is None and tensors[place].dtype is torch.float16
            return ahead and wanted[place] and not overflows

        return {**options, "output_mask": (True,) * len(outputs) + tuple(map(due, computed))}

    def of_called(self, message: str) -> str:
        """What is wrong with an argument of the variant, said of the op that was called: it has the same arguments."""
        begins = f"{self.variant.name}: "
        return f"{self.op.name}: {message.removeprefix(begins)}" if message.startswith(begins) else message

    def constants(self, results: Sequence[Tensor]) -> list[Tensor]:
        """The results that autograd takes for constants: gradients computed in the forward."""
        outputs = self.op.signature.outputs
        return [r for r, o in zip(results, outputs, strict=False) if self.masked and o.name.endswith(AHEAD)]

    def forms(self, tensors: Sequence[Any], options: Mapping[str, Any], results: Sequence[Tensor]) -> list[Form]:
        """The form that the backward op expects of the gradient of each result."""
        found: list[Form] = [(tuple(r.shape), r.dtype) for r in results]
        for place, output in enumerate(self.op.signature.outputs):
            if output.is_reduced(options):
                dims = bind_dims(self.op.signature, self.op.names(tuple(tensors)), options)
                found[place] = output.shape.value(dims, options), results[place].dtype
        for place, argument in self.narrowed.items():
            found[place] = found[place][0], tensors[argument].dtype
        return found

    def refuse_undifferentiable(self, tensors: Sequence[Any]) -> None:
        """Refuse a gradient for an argument that the backward op does not differentiate.

        Raises:
            GradientRefused: If such an argument requires one; names the argument.
        """
        for place in self.others:
            if tensors[place] is not None and tensors[place].requires_grad:
                name = self.op.signature.tensors[place].name
                raise GradientRefused(
                    f"{self.op.name}: `{name}` has no gradient in this op, and it requires one; pass {name}.detach()"
                )

    def to_save(self, tensors: Sequence[Any], results: Sequence[Tensor], options: Mapping[str, Any]) -> list[Any]:
        """The tensors that the backward op needs besides gradients; None for a result that was not computed."""
        mask = options["output_mask"] if self.masked else (True,) * len(results)
        computed = [result if there else None for result, there in zip(results, mask, strict=True)]
        given: dict[str, Sequence[Any]] = {"input": tensors, "result": computed}
        return [given[s.kind][s.place] for s in self.sources if s.kind != "grad"]

    def arguments(self, saved: Sequence[Any], grads: Sequence[Any], forms: Sequence[Form]) -> list[Any]:
        """The tensor arguments of the backward op. A missing gradient is None, or zeros where one is required."""
        left = iter(saved)
        like = next(g for g in grads if g is not None)
        made = []
        for source in self.sources:
            if source.kind != "grad":
                made.append(next(left))
                continue
            grad = grads[source.place] if source.place < len(grads) else None
            if grad is not None:
                shape, dtype = forms[source.place]
                grad = grad if source.place not in self.narrowed else grad.to(dtype)
                grad = contiguous(grad if grad.dim() == len(shape) else grad.expand(shape))
            elif not source.optional:
                shape, dtype = forms[source.place]
                grad = like.new_zeros(shape, dtype=dtype)
            made.append(grad)
        return made


def contiguous(grad: Tensor) -> Tensor:
    """The gradient in contiguous memory, with the strides that its shape implies.

    torch ignores the strides of dims of size 1, and all strides of empty tensors, when it decides whether a tensor is
    contiguous: an expanded gradient of such a shape keeps strides of 0, which a backend may refuse.
    """
    if not grad.is_contiguous():
        return grad.contiguous()
    return grad.clone(memory_format=torch.contiguous_format) if 0 in grad.stride() else grad


@functools.cache
def recipe_of(op: Op) -> Recipe:
    """Find out how an op is recorded.

    Raises:
        GradientRefused: If it defines no gradient.
    """
    if op.gradient == REFUSED:
        raise refusal(op)
    if op.gradient not in OPS:
        raise GradientRefused(
            f"{op.name}: its gradient is to come from `{op.gradient}`, which is not an op; "
            f"define that op too, or omit gradient= of {op.name}"
        )
    variant, backward = OPS[op.gradient_through or op.name], OPS[op.gradient]
    inputs = {a.name: i for i, a in enumerate(op.signature.tensors)}
    results = {o.name: i for i, o in enumerate(variant.signature.outputs)}

    def source(name: str, optional: bool) -> Source:
        if name in inputs:
            return Source("input", inputs[name], optional)
        if name in results:
            return Source("result", results[name], optional)
        return Source("grad", results[name.removeprefix("grad_")], optional)

    differentiated = tuple(inputs[o.name.removeprefix("grad_")] for o in backward.signature.outputs)
    forward_options = {o.name for o in op.signature.options} - {"output_mask"}
    shared = tuple(o.name for o in backward.signature.options if o.name in forward_options)
    return Recipe(
        op,
        variant,
        backward,
        tuple(source(a.name, a.optional) for a in backward.signature.tensors),
        differentiated,
        tuple(place for place in inputs.values() if place not in differentiated),
        shared,
        any(o.name == "output_mask" for o in variant.signature.options),
        {
            place: inputs[output.dtype.argument]
            for place, output in enumerate(op.signature.outputs)
            if isinstance(output.dtype, Chosen) and output.dtype.option not in shared
        },
    )


def backward_backend(backward: Op, backend: str | None) -> str | None:
    """The backend to request for the backward: the forward's, if it implements the backward op."""
    if backend is None or any(i.full_name == backend for i in backward.implementations):
        return backend
    family = backend.partition(":")[0]
    return family if any(i.backend == family for i in backward.implementations) else None


def refusal(op: Op) -> GradientRefused:
    """The error for a gradient through an op that defines none."""
    written = " (it writes into its arguments)" if op.signature.mutates else ""
    return GradientRefused(
        f"{op.name}: no gradient is defined for this op{written}, and an argument requires one; "
        "call it under torch.no_grad(), or detach the arguments"
    )
