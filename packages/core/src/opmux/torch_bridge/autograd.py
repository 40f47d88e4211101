"""Gradients: one autograd function records every op, in eager mode, under tracing and under torch.func transforms.

The backward is an op of its own, so it is dispatched like any other. Nothing is dropped silently: second-order and
forward-mode gradients, and gradients of what an op does not differentiate, are refused by name.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._C._functorch import is_legacy_batchedtensor
from torch._functorch.utils import enable_single_level_autograd_function, unwrap_dead_wrappers
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from opmux.callpath.op import Op
from opmux.errors import GradientRefused, InvalidArgument, UnsupportedCall
from opmux.planning import dispatch
from opmux.torch_bridge.gradient_recipes import Recipe, backward_backend, recipe_of

Compute = Callable[[Op, Sequence[Any], Mapping[str, Any], str | None], Any]
"""Runs an op without recording it: planned at once, or through ``torch.ops`` so that tracing sees it."""


def call(op: Op, tensors: Sequence[Any], options: Mapping[str, Any], backend: str | None, compute: Compute) -> Any:
    """Run an op, and record it if a gradient is due.

    Raises:
        GradientRefused: If a gradient is requested that the op does not define.
        InvalidArgument: If a tensor that the op writes into requires a gradient.
        UnsupportedCall: If torch has batched a tensor.
    """
    refuse_batched(op, tensors)
    refuse_forward_mode(op, tensors)
    if not gradient_due(tensors):
        return compute(op, tensors, options, backend)
    if op.is_backward:
        return _apply(_Once, op, compute, options, backend, *tensors)
    if op.signature.mutates:
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
        GradientRefused: If a tensor has a tangent.
    """
    if forward_ad._current_level >= 0 and any(
        t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors
    ):
        raise forward_mode(op.name)


def refuse_batched(op: Op, tensors: Sequence[Any]) -> None:
    """Refuse tensors that torch has batched to differentiate several times at once.

    They carry a hidden dim that implementations do not know about, and otherwise look like plain tensors.

    Raises:
        UnsupportedCall: If a tensor is batched.
    """
    if any(t is not None and is_legacy_batchedtensor(t) for t in tensors):
        raise UnsupportedCall(
            f"{op.name.removesuffix('_backward')}: batched gradients (is_grads_batched=True, vectorize=True) are not "
            "supported; compute one gradient at a time"
        )


def refuse_with_out(op: Op, tensors: Sequence[Any]) -> None:
    """Refuse gradients of a call with ``out=``, which does not support autograd.

    Raises:
        UnsupportedCall: If torch has batched a tensor.
        GradientRefused: If an argument, or a tensor to write into, requires a gradient.
    """
    refuse_batched(op, tensors)
    refuse_forward_mode(op, tensors)
    if gradient_due(tensors):
        raise GradientRefused(
            f"{op.name}: out= does not support autograd, and an argument requires a gradient; "
            "omit out=, or call it under torch.no_grad()"
        )


def under_transform() -> bool:
    """Whether a torch.func transform (grad, vmap, jvp, ...) is active."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def _apply(function: Any, *arguments: Any) -> Any:
    """Record at the current level; lower levels see the op again, through ``torch.ops``."""
    if not under_transform():
        return function.apply(*arguments)
    with enable_single_level_autograd_function():
        return function.apply(*arguments)


@contextmanager
def below_autograd() -> Iterator[None]:
    """Calls inside the block are not recorded at this level; outer transforms may still record them."""
    with torch._C._AutoDispatchBelowAutograd():
        if not under_transform():
            yield
            return
        # The body of an autograd function runs with recording off, which the outer levels would inherit.
        with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
            yield


def second_order(op: Op) -> GradientRefused:
    """The error for differentiating a backward op."""
    forward = op.name.removesuffix("_backward")
    return GradientRefused(
        f"{forward}: second-order gradients are not supported; "
        "differentiate once, or write this step with torch's own ops"
    )


def forward_mode(name: str) -> GradientRefused:
    """The error for forward-mode AD."""
    return GradientRefused(
        f"{name}: forward-mode gradients (torch.func.jvp, dual tensors) are not supported; "
        "use reverse mode (backward, torch.func.grad), or write this step with torch's own ops"
    )


class Level(_SingleLevelFunction):
    """A function that records at the current level only; below it, the op is dispatched again.

    torch.autograd.Function would pass the call to functorch if a transform is active, and then require a form that
    costs about four times as much.
    """

    @staticmethod
    def _compiled_autograd_key(ctx: Any) -> tuple[int, ...]:
        """Integers that differ between functions, so that compiled autograd does not treat them as the same one."""
        return ctx._autograd_function_id, id(ctx.op)


class _Recorded(Level):
    """Runs a forward op; its backward runs the backward op."""

    @staticmethod
    def forward(
        ctx: Any, recipe: Recipe, compute: Compute, options: Mapping[str, Any], backend: str | None, *tensors: Any
    ) -> Any:
        of_variant = recipe.forward_options(ctx.needs_input_grad[-len(tensors) :], options, tensors)
        try:
            results = compute(recipe.variant, tensors, of_variant, backend)
        except InvalidArgument as error:
            raise InvalidArgument(recipe.of_called(str(error))) from None
        several = results if isinstance(results, tuple) else (results,)
        ctx.op, ctx.recipe, ctx.options, ctx.backend = recipe.op, recipe, options, backend
        ctx.forms = recipe.forms(tensors, options, several)
        ctx.save_for_backward(*recipe.to_save(tensors, several, of_variant))
        ctx.mark_non_differentiable(*recipe.constants(several))
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
            # A function returned by torch.func.vjp runs after its level has ended, on that level's wrappers.
            saved = unwrap_dead_wrappers(ctx.saved_tensors)
            arguments = recipe.arguments(saved, unwrap_dead_wrappers(grads), ctx.forms)
            # The public function chooses its own route: planned, traced, or (with create_graph) recorded, and refused
            # only if it is differentiated.
            results = recipe.backward.public(*arguments, **options, output_mask=mask, backend=backend)
            several = results if isinstance(results, tuple) else (results,)
            for place, want, result in zip(recipe.differentiated, mask, several, strict=True):
                gradients[place] = result if want else None
        return None, None, None, None, *gradients


class _Once(Level):
    """Runs a backward op, whose results may be used but not differentiated again."""

    @staticmethod
    def forward(
        ctx: Any, op: Op, compute: Compute, options: Mapping[str, Any], backend: str | None, *tensors: Any
    ) -> Any:
        ctx.op = op
        return compute(op, tensors, options, backend)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise second_order(ctx.op)
