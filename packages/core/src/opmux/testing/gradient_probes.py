"""The probes of gradients: of a target's, and of the references of an op and its backward against each other."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from opmux.callpath.op import OPS, Op
from opmux.signatures.signature import AHEAD
from opmux.signatures.validation import bind_dims
from opmux.testing import execution
from opmux.testing.bounds import allowed_errors
from opmux.testing.checks import check_memory
from opmux.testing.comparison import compare
from opmux.testing.making import Arguments
from opmux.testing.oracle import expected_results, run_reference, upcast
from opmux.testing.subject import NotClaimed, Subject, TargetRaised, called
from opmux.testing.threads import all_threads


def gradient(subject: Subject) -> None:
    """Check the gradients from autograd against the oracle of the backward op on what the forward returned."""
    op, options = subject.op, subject.arguments.options
    backward = OPS[op.gradient]
    wanted = [o.name.removeprefix("grad_") for o in backward.signature.outputs]
    saved = _run_forward(subject, OPS[op.gradient_through] if op.gradient_through else op)
    generator = torch.Generator(subject.device).manual_seed(1)
    given = [_drawn_like(saved[o.name], generator) for o in op.signature.outputs]
    named: dict[str, Any] = {**subject.arguments.tensors, **saved}
    named |= _incoming(op, named, options, given)
    mask = tuple(subject.arguments.tensors[n] is not None for n in wanted)
    arguments = Arguments(
        {t.name: named.get(t.name) for t in backward.signature.tensors},
        {o.name: options.get(o.name) for o in backward.signature.options} | {"output_mask": mask},
    )
    if execution.implementations(backward, subject.backend):
        _must_claim(backward, subject.backend, arguments.tensors, arguments.options)
    leaves: dict[str, Tensor | None] = {
        n: t.detach().requires_grad_(n in wanted) if t is not None else None for n, t in subject.tensors.items()
    }
    with torch.enable_grad():
        results = called(op, subject.backend, leaves, options)
        asked = [t for n in wanted if (t := leaves[n]) is not None]
        found = iter(_differentiated(_varying(op, results), asked, _varying(op, given)))
    _check_gradients(subject, backward, arguments, mask, found, "gradient", subject.case.view == "expanded")
    check_memory(subject)


def _varying(op: Op, values: Sequence[Tensor]) -> list[Tensor]:
    """Of values for each output, those of the outputs that autograd differentiates."""
    return [v for v, o in zip(values, op.signature.outputs, strict=True) if not o.name.endswith(AHEAD)]


def _incoming(
    op: Op, tensors: Mapping[str, Any], options: Mapping[str, Any], given: Sequence[Tensor]
) -> dict[str, Tensor]:
    """The gradients of the results as the backward op takes them, by name: those of reduced results in full shape."""
    found = {f"grad_{o.name}": g for o, g in zip(op.signature.outputs, given, strict=True)}
    reduced = [o for o in op.signature.outputs if o.is_reduced(options)]
    dims = bind_dims(op.signature, tensors, options) if reduced else {}
    for output in reduced:
        name = f"grad_{output.name}"
        found[name] = found[name].expand(output.shape.value(dims, options)).contiguous()
    return found


def _check_gradients(
    subject: Subject,
    backward: Op,
    arguments: Arguments,
    mask: Sequence[bool],
    found: Iterator[Tensor],
    check: str,
    repeated: bool = False,
) -> None:
    """Compare the wanted gradients with those of the backward op's oracle."""
    exact = expected_results(backward, arguments, ())
    allowed, unit = allowed_errors(backward, arguments, exact, repeated)
    for output, there, right, allowance in zip(backward.signature.outputs, mask, exact, allowed, strict=True):
        if there:
            errors, findings = compare(output.name, next(found), right, allowance, unit)
            subject.errors.include(errors)
            for finding in findings:
                subject.report(check, f"{finding.check}: {finding.message}")


def autograd(subject: Subject) -> None:
    """Check the backward op's reference against the derivative of the forward's reference, both in float64.

    No target runs: otherwise a mistake in a handwritten backward would be the standard for every backend's gradients.
    The derivative is computed by torch's autograd or, if the reference does not support it (it overwrites what autograd
    needs), as a difference quotient along one random direction for each gradient.
    """
    op, options = subject.op, subject.arguments.options
    backward = OPS[op.gradient]
    wanted = [o.name.removeprefix("grad_") for o in backward.signature.outputs]
    tensors: dict[str, Any] = {n: upcast(t) for n, t in subject.arguments.tensors.items()}
    mask = tuple(tensors[n] is not None for n in wanted)
    variant = OPS[op.gradient_through] if op.gradient_through else op
    saved = run_reference(variant, tensors, _options_of(variant, options))
    # Without what the forward has computed ahead, so that the backward computes it.
    ahead = {o.name for o in variant.signature.outputs if o.name.endswith(AHEAD)}
    named = tensors | {o.name: r for o, r in zip(variant.signature.outputs, saved, strict=True)}
    generator = torch.Generator(subject.device).manual_seed(2)
    given = [_drawn_like(named[o.name], generator) for o in op.signature.outputs]
    named |= _incoming(op, named, options, given)
    arguments = Arguments(
        {t.name: named.get(t.name) for t in backward.signature.tensors if t.name not in ahead} | dict.fromkeys(ahead),
        {o.name: options.get(o.name) for o in backward.signature.options} | {"output_mask": mask},
    )
    leaves = {n: None if t is None else t.detach().requires_grad_(n in wanted) for n, t in tensors.items()}
    asked = [leaf for n in wanted if (leaf := leaves[n]) is not None]
    try:
        with torch.enable_grad():
            results = run_reference(op, leaves, options)
            roots, grads = _varying(op, results), _varying(op, given)
            found = torch.autograd.grad(roots, asked, grads, allow_unused=True, materialize_grads=True)
    except RuntimeError:  # the reference has no derivative of its own, or refuses one: difference quotients judge
        _check_quotients(subject, backward, arguments, [n for n in wanted if tensors[n] is not None], given)
        return
    _check_gradients(subject, backward, arguments, mask, iter(found), "gradient reference")


QUOTIENT_STEP, QUOTIENT_ERROR = 1e-5, 1e-5
"""The step of a difference quotient, and its allowed error relative to the sum of its terms."""


def _check_quotients(
    subject: Subject, backward: Op, arguments: Arguments, wanted: Sequence[str], given: Sequence[Tensor]
) -> None:
    """Compare each gradient of the backward's reference with a difference quotient of the forward's."""
    op, options = subject.op, subject.arguments.options
    gradients = {
        o.name.removeprefix("grad_"): g
        for o, g in zip(backward.signature.outputs, expected_results(backward, arguments, ()), strict=True)
    }
    tensors: dict[str, Any] = {n: upcast(t) for n, t in subject.arguments.tensors.items()}
    generator = torch.Generator(subject.device).manual_seed(3)

    def weighed(name: str, moved: Tensor) -> float:
        results = run_reference(op, {**tensors, name: moved}, options)
        # A row that attends to nothing has the lse -inf, wherever its query is moved.
        terms = [(r * g).where(r.isfinite(), 0.0).sum() for r, g in zip(results, given, strict=True)]
        return float(sum(terms))

    for name in wanted:
        direction = _drawn_like(tensors[name], generator)
        step = QUOTIENT_STEP * direction
        quotient = (weighed(name, tensors[name] + step) - weighed(name, tensors[name] - step)) / (2 * QUOTIENT_STEP)
        terms = gradients[name] * direction
        off, allowed = abs(float(terms.sum()) - quotient), QUOTIENT_ERROR * float(terms.abs().sum())
        if not off <= allowed:
            subject.report(
                "gradient reference",
                f"`grad_{name}` along a random direction is {float(terms.sum()):.9g}, the difference quotient of "
                f"{op.name} is {quotient:.9g}: they differ by {off:.3g}, {allowed:.3g} is allowed",
            )


def _drawn_like(result: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.randn(result.shape, generator=generator, device=result.device, dtype=torch.float32)
    return drawn.to(result.dtype)


def _differentiated(results: Sequence[Tensor], asked: Sequence[Tensor], given: Sequence[Tensor]) -> Sequence[Tensor]:
    """`torch.autograd.grad`, with errors of the target's backward distinguished from errors of the suite."""
    try:
        with all_threads():
            return torch.autograd.grad(results, asked, given)
    except Exception as error:
        raise TargetRaised(f"in the backward: {error}") from error


def _must_claim(op: Op, backend: str, tensors: Any, options: Any) -> None:
    """Require that the backend also claims a call of another op, which the probe makes.

    Raises:
        NotClaimed: If it does not, with the declared reason.
    """
    claim = execution.claim(op, backend, tensors, options)
    if claim.implementation is None:
        raise NotClaimed(f"{op.name}: {claim.reason}")


def _options_of(variant: Op, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a variant: those of the op, and defaults for those that only the variant has."""
    return {o.name: options.get(o.name, o.default) for o in variant.signature.options}


def _run_forward(subject: Subject, variant: Op) -> dict[str, Tensor]:
    """What the forward (the variant that runs when a gradient is due) returns, by name."""
    options = _options_of(variant, subject.arguments.options)
    _must_claim(variant, subject.backend, subject.tensors, options)
    with torch.no_grad():
        results = called(variant, subject.backend, subject.tensors, options)
    return {o.name: r for o, r in zip(variant.signature.outputs, results, strict=True)}
