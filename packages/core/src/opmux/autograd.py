"""Gradients: one autograd function records every op, in eager mode, under tracing and under torch.func transforms.

The backward is an op of its own, so it is dispatched like any other. Nothing is dropped silently: second-order and
forward-mode gradients, and gradients of what an op does not differentiate, are refused by name.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from opmux import dispatch
from opmux.errors import GradientRefused
from opmux.op import OPS, Op
from opmux.signature import REFUSED

Compute = Callable[[Op, Sequence[Any], Mapping[str, Any], str | None], Any]
"""Runs an op without recording it: planned at once, or through ``torch.ops`` so that tracing sees it."""

Form = tuple[tuple[Any, ...], torch.dtype]
"""The shape and dtype of an output."""


def call(op: Op, tensors: Sequence[Any], options: Mapping[str, Any], backend: str | None, compute: Compute) -> Any:
    """Run an op, recorded where a gradient is due.

    Raises:
        GradientRefused: where a gradient is asked for that the op does not define.
        InvalidArgument: where a tensor that the op writes into requires one.
    """
    refuse_forward_mode(op, tensors)
    if not gradient_due(tensors):
        return compute(op, tensors, options, backend)
    if op.is_backward:
        return _apply(_Once, op, compute, options, backend, *tensors)
    dispatch.refuse_gradient_into_mutated(op, op.names(tuple(tensors)))
    recipe = recipe_of(op)
    recipe.refuse_undifferentiable(tensors)
    return _apply(_Recorded, recipe, compute, options, backend, *tensors)


def gradient_due(tensors: Sequence[Any]) -> bool:
    """Whether autograd would record a call on these tensors."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def refuse_forward_mode(op: Op, tensors: Sequence[Any]) -> None:
    """Refuse dual tensors, whose tangents would be lost.

    Raises:
        GradientRefused: where a tensor has a tangent.
    """
    if forward_ad._current_level >= 0 and any(
        t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors
    ):
        raise forward_mode(op.name)


def refuse_with_out(op: Op, tensors: Sequence[Any]) -> None:
    """``out=`` has no autograd.

    Raises:
        GradientRefused: where an argument, or a tensor to write into, requires a gradient.
    """
    refuse_forward_mode(op, tensors)
    if gradient_due(tensors):
        raise GradientRefused(
            f"{op.name}: out= has no autograd, and an argument requires a gradient; "
            "leave out= away, or call it under torch.no_grad()"
        )


def under_transform() -> bool:
    """Whether a torch.func transform (grad, vmap, jvp, ...) is at work."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def _apply(function: Any, *arguments: Any) -> Any:
    """Record at the level at hand; the levels below see the op again, through ``torch.ops``."""
    if not under_transform():
        return function.apply(*arguments)
    with enable_single_level_autograd_function():
        return function.apply(*arguments)


@contextmanager
def below_autograd() -> Iterator[None]:
    """What is called inside is not recorded here; the transforms further out may still record it."""
    with torch._C._AutoDispatchBelowAutograd():
        if not under_transform():
            yield
            return
        # The body of an autograd function runs with recording off, which the outer levels would inherit.
        with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
            yield


def refusal(op: Op) -> GradientRefused:
    """The complaint about a gradient through an op that defines none."""
    written = " (it writes into its arguments)" if op.signature.mutates else ""
    return GradientRefused(
        f"{op.name}: no gradient is defined for this op{written}, and an argument requires one; "
        "call it under torch.no_grad(), or detach the arguments"
    )


def second_order(op: Op) -> GradientRefused:
    """The complaint about the gradient of a backward op."""
    forward = op.name.removesuffix("_backward")
    return GradientRefused(
        f"{forward}: second-order gradients are not supported; "
        "differentiate once, or write this step with torch's own ops"
    )


def forward_mode(name: str) -> GradientRefused:
    """The complaint about forward-mode AD."""
    return GradientRefused(
        f"{name}: forward-mode gradients (torch.func.jvp, dual tensors) are not supported; "
        "use reverse mode (backward, torch.func.grad), or write this step with torch's own ops"
    )


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
        variant: the op that is run in its place when a gradient is due.
        sources: of each tensor argument of the backward op, in order.
        differentiated: the places of the forward's tensors that the backward op gives gradients of, in its order.
    """

    op: Op
    variant: Op
    backward: Op
    sources: tuple[Source, ...]
    differentiated: tuple[int, ...]
    option_names: tuple[str, ...]

    def refuse_undifferentiable(self, tensors: Sequence[Any]) -> None:
        """Refuse a gradient for an argument that the backward op does not differentiate.

        Raises:
            GradientRefused: names the argument.
        """
        for place, (argument, tensor) in enumerate(zip(self.op.signature.tensors, tensors, strict=True)):
            if tensor is not None and tensor.requires_grad and place not in self.differentiated:
                raise GradientRefused(
                    f"{self.op.name}: `{argument.name}` has no gradient in this op, and it requires one; "
                    f"pass {argument.name}.detach()"
                )

    def to_save(self, tensors: Sequence[Any], results: Sequence[Tensor]) -> list[Any]:
        """What the backward op needs beside gradients."""
        given = {"input": tensors, "result": results}
        return [given[s.kind][s.place] for s in self.sources if s.kind != "grad"]

    def arguments(self, saved: Sequence[Any], grads: Sequence[Any], forms: Sequence[Form]) -> list[Any]:
        """The tensor arguments of the backward op. A gradient that nobody gave is None, or zeros where it must be."""
        left = iter(saved)
        like = next(g for g in grads if g is not None)
        made = []
        for source in self.sources:
            if source.kind != "grad":
                made.append(next(left))
                continue
            grad = grads[source.place] if source.place < len(grads) else None
            if grad is not None:
                grad = grad.contiguous()
            elif not source.optional:
                shape, dtype = forms[source.place]
                grad = like.new_zeros(shape, dtype=dtype)
            made.append(grad)
        return made


@functools.cache
def recipe_of(op: Op) -> Recipe:
    """How an op is recorded.

    Raises:
        GradientRefused: where it defines no gradient.
    """
    if op.gradient == REFUSED:
        raise refusal(op)
    if op.gradient not in OPS:
        raise GradientRefused(
            f"{op.name}: its gradient is to come from `{op.gradient}`, which is no op; "
            f"define that op too, or leave gradient= of {op.name} away"
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

    return Recipe(
        op,
        variant,
        backward,
        tuple(source(a.name, a.optional) for a in backward.signature.tensors),
        tuple(inputs[o.name.removeprefix("grad_")] for o in backward.signature.outputs),
        tuple(o.name for o in backward.signature.options if o.name in {f.name for f in op.signature.options}),
    )


def backward_backend(backward: Op, backend: str | None) -> str | None:
    """The backend of a forward is asked for in the backward too, where it implements it."""
    if backend is None:
        return None
    family = backend.split(":")[0]
    return family if any(i.backend == family for i in backward.implementations) else None


# torch.autograd.Function would hand the call to functorch where a transform is active, and asks then for a form that
# is about four times dearer. A function of a single level records at the level that runs, which is all that is
# needed here: below that level the op is dispatched anew.
class _Recorded(_SingleLevelFunction):
    """Runs a forward op; its backward runs the backward op."""

    @staticmethod
    def forward(
        ctx: Any, recipe: Recipe, compute: Compute, options: Mapping[str, Any], backend: str | None, *tensors: Any
    ) -> Any:
        results = compute(recipe.variant, tensors, options, backend)
        several = results if isinstance(results, tuple) else (results,)
        ctx.recipe, ctx.options, ctx.backend = recipe, options, backend
        ctx.forms = [(tuple(r.shape), r.dtype) for r in several]
        ctx.save_for_backward(*recipe.to_save(tensors, several))
        ctx.set_materialize_grads(False)
        count = len(recipe.op.signature.outputs)
        return several[0] if count == 1 else several[:count]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        recipe: Recipe = ctx.recipe
        wanted = ctx.needs_input_grad[-len(recipe.op.signature.tensors) :]
        gradients: list[Any] = [None] * len(wanted)
        if any(g is not None for g in grads):
            mask = tuple(wanted[place] for place in recipe.differentiated)
            options = {name: ctx.options[name] for name in recipe.option_names}
            backend = backward_backend(recipe.backward, ctx.backend)
            arguments = recipe.arguments(ctx.saved_tensors, grads, ctx.forms)
            # The public function finds its own way: planned, traced, or (with create_graph) recorded, to be refused
            # only if somebody does differentiate it.
            results = recipe.backward.public(*arguments, **options, output_mask=mask, backend=backend)
            several = results if isinstance(results, tuple) else (results,)
            for place, want, result in zip(recipe.differentiated, mask, several, strict=True):
                gradients[place] = result if want else None
        return None, None, None, None, *gradients


class _Once(_SingleLevelFunction):
    """Runs a backward op, whose results may be used, but not differentiated again."""

    @staticmethod
    def forward(
        ctx: Any, op: Op, compute: Compute, options: Mapping[str, Any], backend: str | None, *tensors: Any
    ) -> Any:
        ctx.op = op
        return compute(op, tensors, options, backend)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise second_order(ctx.op)


def run_reference_backward(op: Op, arguments: Mapping[str, Any], mask: Sequence[bool]) -> tuple[Tensor, ...]:
    """The generated backward: the reference's forward again, recorded, and its autograd.

    Args:
        op: the forward op.
        arguments: the backward op's arguments: ``grad_<output>``, the forward's tensors and options.
        mask: which of the forward's tensor arguments want a gradient.

    Returns:
        A gradient for each of the forward's tensor arguments; an empty tensor for one that is not wanted or absent.
    """
    tensors = [arguments[a.name] for a in op.signature.tensors]
    wanted = [want and tensor is not None for want, tensor in zip(mask, tensors, strict=True)]
    options = {o.name: arguments[o.name] for o in op.signature.options}
    with _recording():
        leaves = [None if t is None else _leaf(t, want) for t, want in zip(tensors, wanted, strict=True)]
        results = op.reference(*leaves, **options)
        several = results if isinstance(results, tuple) else (results,)
        given = [arguments[f"grad_{o.name}"] for o in op.signature.outputs]
        pairs = [(result, grad) for result, grad in zip(several, given, strict=True) if result.requires_grad]
        asked = [leaf for leaf, want in zip(leaves, wanted, strict=True) if leaf is not None and want]
        found: Iterator[Any] = iter([None] * len(asked))
        if pairs and asked:
            roots, grads = zip(*pairs, strict=True)
            found = iter(torch.autograd.grad(roots, asked, grads, allow_unused=True))
    gradients = []
    for tensor, want in zip(tensors, wanted, strict=True):
        if not want:
            gradients.append(tensors[0].new_empty(0, dtype=(tensors[0] if tensor is None else tensor).dtype))
            continue
        grad = next(found)
        gradients.append(tensor.new_zeros(tensor.shape) if grad is None else grad.contiguous())
    return tuple(gradients)


@contextmanager
def _recording() -> Iterator[None]:
    """Let autograd record, wherever this is called from."""
    with torch.inference_mode(False):
        # Inside a registered kernel autograd's dispatch keys are excluded: let them in again, or nothing is recorded.
        include = torch._C._dispatch_tls_local_include_set()
        exclude = torch._C._dispatch_tls_local_exclude_set()
        for key in ("AutogradFunctionality", "AutogradOther", "ADInplaceOrView"):
            exclude = exclude.remove(getattr(torch._C.DispatchKey, key))
        with torch._C._ForceDispatchKeyGuard(include, exclude), torch.enable_grad():
            yield


def _leaf(tensor: Tensor, wanted: bool) -> Tensor:
    """A tensor of the same values that records, or does not."""
    made = tensor.clone() if tensor.is_inference() else tensor.detach()
    return made.requires_grad_(wanted)
