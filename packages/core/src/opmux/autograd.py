"""Gradients: one autograd function for every op, in the two forms that torch needs.

The backward is an op of its own, so it is dispatched like any other. Nothing is dropped silently: second-order and
forward-mode gradients, and gradients of what an op does not differentiate, are refused by name.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from opmux.errors import GradientRefused, UnsupportedCall
from opmux.op import OPS, Op
from opmux.signature import REFUSED

Invoke = Callable[[Op, Sequence[Any], Mapping[str, Any], str | None], Any]
"""How ops are run inside an autograd function: planned at once, or through ``torch.ops`` so that tracing sees them."""


def gradient_due(tensors: Sequence[Any]) -> bool:
    """Whether autograd would record a call on these tensors."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def backward_of(op: Op) -> Op:
    """The backward op.

    Raises:
        GradientRefused: where the op defines no gradient.
    """
    if op.gradient == REFUSED:
        raise refusal(op)
    return OPS[op.gradient]


def refusal(op: Op) -> GradientRefused:
    """The complaint about a gradient through an op that defines none."""
    if op.is_backward:
        return second_order(op.name)
    written = " (it writes into its arguments)" if op.signature.mutates else ""
    return GradientRefused(
        f"{op.name}: no gradient is defined for this op{written}, and an argument requires one; "
        "call it under torch.no_grad(), or detach the arguments"
    )


def second_order(name: str) -> GradientRefused:
    """The complaint about a second-order gradient."""
    return GradientRefused(
        f"{name}: second-order gradients are not supported; "
        "differentiate once (create_graph=False), or use the op's reference: opmux.OP.reference"
    )


def forward_mode(name: str) -> GradientRefused:
    """The complaint about forward-mode AD."""
    return GradientRefused(
        f"{name}: forward-mode gradients (torch.func.jvp, dual tensors) are not supported; "
        "use reverse mode (backward, torch.func.grad), or the op's reference: opmux.OP.reference"
    )


def refuse_undifferentiable(op: Op, backward: Op, tensors: Sequence[Any]) -> None:
    """Refuse a gradient for an argument that the backward op does not differentiate.

    Raises:
        GradientRefused: names the argument.
    """
    given = {o.name for o in backward.signature.outputs}
    for argument, tensor in zip(op.signature.tensors, tensors, strict=True):
        if tensor is not None and tensor.requires_grad and f"grad_{argument.name}" not in given:
            raise GradientRefused(
                f"{op.name}: `{argument.name}` has no gradient in this op, and it requires one; "
                f"pass {argument.name}.detach()"
            )


class _Saved:
    """What a backward needs: which op ran, its options, and how to run the backward op."""

    def __init__(self, op: Op, options: Mapping[str, Any], backend: str | None, invoke: Invoke) -> None:
        self.op, self.options, self.backend, self.invoke = op, options, backend, invoke
        self.backward = backward_of(op)
        self.variant = OPS[op.gradient_through] if op.gradient_through else op
        inputs = {a.name: i for i, a in enumerate(op.signature.tensors)}
        results = {o.name: i for i, o in enumerate(self.variant.signature.outputs)}
        needed = [t.name for t in self.backward.signature.tensors]
        self.inputs = [n for n in needed if n in inputs]
        self.results = [n for n in needed if n in results and n not in inputs]
        self.input_places = [inputs[n] for n in self.inputs]
        self.result_places = [results[n] for n in self.results]
        self.count = len(op.signature.outputs)

    def tensors(self, tensors: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        """The tensors to save."""
        return [tensors[p] for p in self.input_places] + [results[p] for p in self.result_places]

    def run_backward(
        self, saved: Sequence[Any], grads: Sequence[Any], wanted: Sequence[bool], invoke: Invoke
    ) -> list[Any]:
        """One gradient (or None) for each tensor argument of the forward."""
        named: dict[str, Any] = dict(zip([*self.inputs, *self.results], saved, strict=True))
        outputs = self.variant.signature.outputs
        reference = next(g for g in grads if g is not None)
        for output, grad in zip(outputs, [*grads, *[None] * (len(outputs) - len(grads))], strict=True):
            named[f"grad_{output.name}"] = grad if grad is None else grad.contiguous()
        differentiated = [o.name.removeprefix("grad_") for o in self.backward.signature.outputs]
        places = {a.name: i for i, a in enumerate(self.op.signature.tensors)}
        mask = tuple(bool(wanted[places[name]]) for name in differentiated)
        if not any(mask):
            return [None] * len(places)
        arguments: list[Any] = []
        for argument in self.backward.signature.tensors:
            value = named.get(argument.name)
            if value is None and not argument.optional:
                value = self._zeros(argument.name.removeprefix("grad_"), named, reference)
            arguments.append(value)
        options = {o.name: self.options.get(o.name) for o in self.backward.signature.options}
        options["output_mask"] = mask
        results = invoke(self.backward, arguments, options, backward_backend(self.backward, self.backend))
        results = results if isinstance(results, tuple) else (results,)
        gradients: list[Any] = [None] * len(places)
        for name, result, want in zip(differentiated, results, mask, strict=True):
            if want:
                gradients[places[name]] = result
        return gradients

    def _zeros(self, output: str, named: Mapping[str, Any], reference: Tensor) -> Tensor:
        """A gradient that nobody gave, as zeros of the output's shape."""
        if output in named and named[output] is not None:
            return torch.zeros_like(named[output], memory_format=torch.contiguous_format)
        place = next(i for i, o in enumerate(self.variant.signature.outputs) if o.name == output)
        shape, dtype = self.output_forms[place]
        return reference.new_zeros(shape, dtype=dtype)

    def remember_forms(self, results: Sequence[Tensor]) -> None:
        """Keep the outputs' shapes, to make zeros of a gradient that nobody gave."""
        self.output_forms = [(tuple(r.shape), r.dtype) for r in results]


def backward_backend(backward: Op, backend: str | None) -> str | None:
    """The backend of a forward is asked for in the backward too, where it implements it."""
    if backend is None:
        return None
    family = backend.split(":")[0]
    return family if any(i.backend == family for i in backward.implementations) else None


class _Once(torch.autograd.Function):
    """Runs an op whose result may be used, but not differentiated."""

    @staticmethod
    def forward(run: Callable[..., Any], refusal: GradientRefused, name: str, *tensors: Any) -> Any:
        return run(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, ctx.refusal, ctx.name, *_ = inputs

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise ctx.refusal

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise forward_mode(ctx.name)

    @staticmethod
    def vmap(info: Any, in_dims: Any, run: Any, refusal: Any, name: str, *tensors: Any) -> Any:
        raise no_vmap(name)


def _once(invoke: Invoke, refusal: GradientRefused) -> Invoke:
    def invoke_once(op: Op, tensors: Sequence[Any], options: Mapping[str, Any], backend: str | None) -> Any:
        return _Once.apply(lambda *t: invoke(op, t, options, backend), refusal, op.name, *tensors)

    return invoke_once


def _backward(ctx: Any, saved: _Saved, grads: Sequence[Any], transformed: bool = False) -> list[Any]:
    tensors = ctx.saved_tensors
    wanted = ctx.needs_input_grad[-len(saved.op.signature.tensors) :]
    if all(g is None for g in grads):
        return [None] * len(wanted)
    if transformed or gradient_due((*tensors, *grads)):
        invoke = _once(saved.invoke, second_order(saved.backward.name))
        return saved.run_backward(tensors, grads, wanted, invoke)
    with torch.no_grad():
        return saved.run_backward(tensors, grads, wanted, saved.invoke)


class _Eager(torch.autograd.Function):
    """The cheap form, for plain eager tensors and for the registered op."""

    @staticmethod
    def forward(ctx: Any, saved: _Saved, *tensors: Any) -> Any:
        results = saved.invoke(saved.variant, tensors, saved.options, saved.backend)
        several = results if isinstance(results, tuple) else (results,)
        ctx.saved = saved
        saved.remember_forms(several)
        ctx.save_for_backward(*saved.tensors(tensors, several))
        ctx.set_materialize_grads(False)
        return several[0] if saved.count == 1 else several[: saved.count]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, *_backward(ctx, ctx.saved, grads)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise forward_mode(ctx.saved.op.name)


class _Transformed(torch.autograd.Function):
    """The form that torch.func's transforms need: it returns all that the backward needs. About 4 x dearer."""

    @staticmethod
    def forward(saved: _Saved, *tensors: Any) -> Any:
        return saved.invoke(saved.variant, tensors, saved.options, saved.backend)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        saved, *tensors = inputs
        several = output if isinstance(output, tuple) else (output,)
        ctx.saved = saved
        saved.remember_forms(several)
        ctx.save_for_backward(*saved.tensors(tensors, several))
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, *_backward(ctx, ctx.saved, grads, transformed=True)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise forward_mode(ctx.saved.op.name)

    @staticmethod
    def vmap(info: Any, in_dims: Any, saved: _Saved, *tensors: Any) -> Any:
        raise no_vmap(saved.op.name)


def no_vmap(name: str) -> UnsupportedCall:
    """The complaint about vmap."""
    return UnsupportedCall(
        f"{name}: torch.func.vmap is not supported; the op takes leading batch dims itself, or loop over the batch"
    )


def differentiable_call(
    op: Op, tensors: Sequence[Any], options: Mapping[str, Any], backend: str | None, invoke: Invoke
) -> Any:
    """Run an op so that autograd records it."""
    saved = _Saved(op, options, backend, invoke)
    refuse_undifferentiable(op, saved.backward, tensors)
    return _Eager.apply(saved, *tensors)


def transformed_call(
    op: Op, tensors: Sequence[Any], options: Mapping[str, Any], backend: str | None, invoke: Invoke
) -> Any:
    """Run an op under a torch.func transform or forward AD.

    Raises:
        UnsupportedCall: for a mutating op.
    """
    if op.signature.mutates:
        raise UnsupportedCall(
            f"{op.name}: it writes into its arguments, which torch.func transforms do not support; "
            "call it outside of the transform"
        )
    if op.gradient == REFUSED:
        return _once(invoke, refusal(op))(op, tensors, options, backend)
    saved = _Saved(op, options, backend, invoke)
    results = _Transformed.apply(saved, *tensors)
    several = results if isinstance(results, tuple) else (results,)
    return several[0] if saved.count == 1 else several[: saved.count]


def _grads(pairs: Sequence[tuple[Tensor, Tensor]], wanted: Sequence[Tensor]) -> Sequence[Tensor | None]:
    if not pairs or not wanted:
        return [None] * len(wanted)
    results, grads = zip(*pairs, strict=True)
    return torch.autograd.grad(results, list(wanted), grads, allow_unused=True)


def run_reference_backward(op: Op, arguments: Mapping[str, Any], mask: Sequence[bool]) -> tuple[Tensor, ...]:
    """The generated backward: the reference's forward again, recorded, and its autograd.

    Args:
        op: the forward op.
        arguments: the backward op's arguments: ``grad_<output>``, the forward's tensors and options.
        mask: which of the forward's tensor arguments want a gradient.
    """
    # Inside a registered kernel the autograd keys are excluded: let them in again, or nothing is recorded.
    include = torch._C._dispatch_tls_local_include_set()
    exclude = torch._C._dispatch_tls_local_exclude_set()
    for key in ("AutogradCPU", "AutogradCUDA", "AutogradOther", "AutogradFunctionality", "ADInplaceOrView"):
        exclude = exclude.remove(getattr(torch._C.DispatchKey, key))
    tensors = [arguments[a.name] for a in op.signature.tensors]
    options = {o.name: arguments[o.name] for o in op.signature.options}
    with torch._C._ForceDispatchKeyGuard(include, exclude), torch.enable_grad():
        leaves = [t if t is None else t.detach().requires_grad_(w) for t, w in zip(tensors, mask, strict=True)]
        results = op.reference(*leaves, **options)
        several = results if isinstance(results, tuple) else (results,)
        pairs = [
            (result, arguments[f"grad_{output.name}"])
            for result, output in zip(several, op.signature.outputs, strict=True)
            if result.requires_grad
        ]
        wanted = [leaf for leaf, w in zip(leaves, mask, strict=True) if w]
        found = iter(_grads(pairs, wanted))
    gradients = []
    for tensor, want in zip(tensors, mask, strict=True):
        if not want:
            gradients.append(tensors[0].new_empty(0, dtype=(tensor if tensor is not None else tensors[0]).dtype))
            continue
        grad = next(found)
        gradients.append(torch.zeros_like(tensor) if grad is None else grad.contiguous())
    return tuple(gradients)
