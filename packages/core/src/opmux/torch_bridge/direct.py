"""The short way of a call that autograd records: plain tensors in eager mode, behind a guard of their own.

A guard that the op keeps has settled what `routing` and `autograd` ask at other calls: no mode, transform, subclass or
tangent, no backend asked for, and the same tensors that require gradients. What is left is done without loops. Calls
that need more take the long way: ops that compute gradients in the forward, or whose results are reduced.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from opmux.callpath.op import Op
from opmux.callpath.plans import Front
from opmux.errors import GradientRefused
from opmux.running.execution import recover
from opmux.torch_bridge.autograd import Level
from opmux.torch_bridge.gradient_recipes import Form, Recipe, contiguous, recipe_of


def recorded(op: Op, tensors: Sequence[Any]) -> tuple[Callable[..., Any], Callable[..., Any] | None] | None:
    """What runs and records calls with tensors like these, and the op that runs instead; None: they take the long way.

    Args:
        op: the op.
        tensors: all of its tensor arguments; a stand-in that requires no gradient for an absent one.
    """
    if op.is_backward or op.signature.mutates:
        return None
    try:
        recipe = recipe_of(op)
        recipe.refuse_undifferentiable(tensors)
    except GradientRefused:  # said by the long way
        return None
    if recipe.masked or any(output.reduction for output in op.signature.outputs):
        return None
    if recipe.narrowed and len(op.signature.outputs) > 1:
        return None
    return _recording(Link(recipe)), None if recipe.variant is op else recipe.variant.public


def _recording(link: "Link") -> Callable[..., Any]:
    apply: Callable[..., Any] = _Direct.apply  # type: ignore[attr-defined]  # its metaclass adds it

    def record(plans: Front, run: Callable[..., Any], /, *tensors: Any, **options: Any) -> Any:
        return apply(link, plans, run, options, *tensors)

    return record


class Link:
    """A recipe, prepared: where each tensor comes from, by its place.

    Attributes:
        tensors, outputs, results: how many the op takes, the op returns, and its variant returns.
        saved: what the backward op needs, among the forward's tensors and results.
        arguments: the backward op's arguments, among what was saved and the gradients of the results.
        differentiated: the op's tensors whose gradients the backward op returns, in its order.
        required: the results whose gradient the backward op must have.
        dropped: options that the backward op does not take.
        chooses: the option that chooses the dtype of the only output, where the backward op does not take it.
        narrow: the tensor whose dtype the backward op then expects the gradient in.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.op, self.backward = recipe.op, recipe.backward
        self.variant_runs = recipe.variant is not recipe.op
        self.tensors = len(recipe.op.signature.tensors)
        self.outputs = len(recipe.op.signature.outputs)
        self.results = len(recipe.variant.signature.outputs)
        kept = [s for s in recipe.sources if s.kind != "grad"]
        self.saved = tuple(s.place + self.tensors * (s.kind == "result") for s in kept)
        order = {id(source): place for place, source in enumerate(kept)}
        self.arguments = tuple(len(kept) + s.place if s.kind == "grad" else order[id(s)] for s in recipe.sources)
        self.differentiated = recipe.differentiated
        self.required = tuple(s.place for s in recipe.sources if s.kind == "grad" and not s.optional)
        names = {o.name for o in recipe.op.signature.options}
        self.dropped = tuple(names - set(recipe.option_names))
        self.chooses = recipe.op.signature.chosen[0].option if recipe.narrowed else None
        self.narrow = recipe.narrowed.get(0, 0)

    def given(self, grads: Sequence[Any], forms: Sequence[Form]) -> list[Any]:
        """The gradients of the variant's results, made contiguous; zeros for a missing one that is required."""
        made = [None if g is None else contiguous(g) for g in grads]
        made += [None] * (self.results - len(made))
        for place in self.required:
            if made[place] is None:
                shape, dtype = forms[place]
                made[place] = next(g for g in grads if g is not None).new_zeros(shape, dtype=dtype)
        return made


BEFORE = 4
"""Arguments of the autograd function before the op's tensors."""


class _Direct(Level):
    """Runs a forward op; its backward runs the backward op."""

    @staticmethod
    def forward(
        ctx: Any, link: Link, plans: Front, run: Callable[..., Any], options: Mapping[str, Any], *tensors: Any
    ) -> Any:
        try:
            results = run(*tensors, **options)
        except Exception as error:
            if link.variant_runs:
                raise  # by another op's call path, which has judged it
            results = recover(link.op, error, plans, tensors, options, None)
        several: tuple[Tensor, ...] = results if results.__class__ is tuple else (results,)
        ctx.op, ctx.link, ctx.options = link.op, link, options
        every = (*tensors, *several)
        ctx.save_for_backward(*[every[place] for place in link.saved])
        ctx.set_materialize_grads(False)
        if link.chooses is not None:
            ctx.dtype = None if options[link.chooses] is None else tensors[link.narrow].dtype
        if link.outputs == 1:
            return several[0]
        ctx.forms = [(tuple(r.shape), r.dtype) for r in several]
        return several[: link.outputs]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        link: Link = ctx.link
        if grads[0] is not None and link.outputs == 1:
            grad = grads[0] if link.chooses is None or ctx.dtype is None else grads[0].to(ctx.dtype)
            given = [contiguous(grad), *(None,) * (link.results - 1)]
        elif any(g is not None for g in grads):
            given = link.given(grads, ctx.forms)
        else:
            return (None,) * (BEFORE + link.tensors)
        options = ctx.options
        if link.dropped:
            options = {name: value for name, value in options.items() if name not in link.dropped}
        wanted = ctx.needs_input_grad[BEFORE:]
        mask = tuple([wanted[place] for place in link.differentiated])
        every = (*ctx.saved_tensors, *given)
        arguments = [every[place] for place in link.arguments]
        # The public function chooses its own route: planned, traced, or (with create_graph) recorded, and refused
        # only if it is differentiated.
        results = link.backward.public(*arguments, **options, output_mask=mask)
        several = results if results.__class__ is tuple else (results,)
        gradients: list[Any] = [None] * (BEFORE + link.tensors)
        for place, want, result in zip(link.differentiated, mask, several, strict=True):
            if want:
                gradients[BEFORE + place] = result
        return tuple(gradients)
