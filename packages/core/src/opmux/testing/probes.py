"""The probes: functions that call the target of a `Subject`, check one aspect, and report what is wrong.

`values` is the usual one. A probe runs one case; `opmux.testing.cases` decides which cases have which probe.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from opmux.callpath.op import OPS, Op
from opmux.declared.implementation import Implementation
from opmux.errors import InvalidArgument
from opmux.signatures.signature import AHEAD
from opmux.signatures.validation import bind_dims
from opmux.testing import execution, large
from opmux.testing.bounds import allowed_errors
from opmux.testing.case import all_options
from opmux.testing.checks import check_forms, check_memory, check_unwritten, check_values, same_bits
from opmux.testing.comparison import compare
from opmux.testing.inputs import make_arguments
from opmux.testing.magnitudes import doublings_of
from opmux.testing.making import Arguments
from opmux.testing.memory import guarded_empty
from opmux.testing.oracle import expected_results, mutated, run_reference, upcast
from opmux.testing.poison import poison_freed, poisoned
from opmux.testing.subject import NotClaimed, Subject, TargetRaised, called, forms, refill, run
from opmux.testing.threads import all_threads
from opmux.testing.unspecified import kinds_are_open, unspecified_results
from opmux.testing.unwritten import settled


def values(subject: Subject) -> None:
    """Check one call in poisoned memory against the oracle and its buffers, and likewise one in ordinary memory."""
    if not subject.op.signature.mutates:
        poison_freed(forms(subject), subject.device)
    with poisoned() as allocated:
        results = run(subject)
    if not subject.op.signature.mutates:
        check_forms(subject, results)
        check_unwritten(subject, results)
    check_memory(subject, allocated)
    check_values(subject, results, subject.arguments)
    if subject.op.signature.mutates:
        return
    again = run(subject)
    if not same_bits(_settled(subject, results), _settled(subject, again)):
        check_values(subject, again, subject.arguments)


def _settled(subject: Subject, results: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Results without what the op leaves unwritten, which may differ from call to call."""
    return settled(subject.op, subject.arguments.tensors, results)


def nonfinite(subject: Subject) -> None:
    """Put one NaN or infinity into one tensor: it must reach the same elements as in the oracle, and no others.

    Elements that a declared caveat leaves unspecified are not compared.
    """
    name, value = subject.case.data, float(subject.case.probe)
    tensor = subject.arguments.tensors[name]
    if tensor is None or not tensor.numel():
        return
    plant(subject, name, value)
    results = run(subject)
    check_memory(subject)
    free = unspecified_results(subject.op, subject.arguments, subject.claim.implementation)
    kinds = kinds_are_open(subject.claim.implementation)
    check_values(subject, results, subject.arguments, unspecified=free, any_nonfinite=kinds)


def magnitude(subject: Subject) -> None:
    """Fill one tensor with numbers so large that the reference just stays finite: the target must stay exact too."""
    if not doublings_of(subject.case, subject.device):
        raise NotClaimed(f"no larger numbers in `{subject.case.data}` leave the reference finite and determined")
    results = run(subject)
    check_memory(subject)
    check_values(subject, results, subject.arguments)


def plant(subject: Subject, name: str, value: float) -> None:
    """Put a value into the middle of a tensor; of a paged cache, where a token lies."""
    tensor = subject.arguments.tensors[name]
    assert tensor is not None
    index = [size // 2 for size in tensor.shape]
    table, lengths = subject.arguments.tensors.get("block_table"), subject.arguments.tensors.get("seq_lens")
    if name.endswith("_cache") and table is not None and lengths is not None:
        row = int(lengths.argmax())
        token = int(lengths[row]) // 2
        index[:2] = [int(table[row, token // tensor.shape[1]]), token % tensor.shape[1]]
    for one in (tensor, subject.placed[name].tensor):
        one[tuple(index)] = value
    subject.placed[name].remember()


def out(subject: Subject) -> None:
    """``out=`` writes into the given tensors, which lie in guarded memory, and returns them."""
    run(subject)  # makes the plan; without one, out= would be a copy
    given = [guarded_empty(shape, dtype, subject.device, subject.case.view) for shape, dtype in forms(subject)]
    for buffer in given:
        buffer.remember()
    targets = tuple(buffer.tensor for buffer in given)
    results = run(subject, out=targets if len(targets) > 1 else targets[0])
    if len(results) != len(targets) or any(a is not b for a, b in zip(results, targets, strict=True)):
        subject.report("out=", "the call does not return the tensors that were given as out=")
    for output, buffer in zip(subject.op.signature.outputs, given, strict=True):
        count = buffer.changed_outside()
        if count:
            subject.report("writes outside", f"{count} elements around out= `{output.name}` were written")
    check_memory(subject)
    check_values(subject, targets, subject.arguments)


def repeat(subject: Subject) -> None:
    """Check that equal inputs give equal bits, whatever the memory held before."""
    results = [t.clone() for t in _settled(subject, run(subject))]
    for _ in range(3):
        if subject.op.signature.mutates:
            refill(subject, subject.arguments)
        else:
            poison_freed(forms(subject), subject.device)
        again = _settled(subject, run(subject))
        if not same_bits(results, again):
            subject.report("determinism", "equal inputs gave different bits, and deterministic=True is declared")
            return


def stale(subject: Subject) -> None:
    """Call with the same tensors and other contents: nothing of the first call may remain in the second."""
    other = _other_contents(subject)
    run(subject)
    refill(subject, other)
    results = run(subject)
    check_memory(subject)
    check_values(subject, results, other, check="stale contents")


def _other_contents(subject: Subject) -> Arguments:
    """Other contents of the same shapes; bounds that follow from the contents become the larger of both."""
    other = make_arguments(subject.case, subject.device, round_=1)
    fixed = all_options(subject.op.signature, subject.case)
    for name, value in other.options.items():
        if name not in fixed:
            other.options[name] = max(value, subject.arguments.options[name])
    subject.arguments.options = other.options
    return other


def capture(subject: Subject) -> None:
    """Capture the call in a CUDA/HIP graph and replay it on other contents."""
    try:
        other, results = _captured(subject)
    except TargetRaised:
        raise
    except RuntimeError as error:  # raised by a capture that became invalid
        raise TargetRaised(f"in graph capture: {error}") from error
    check_values(subject, results, other, check="graph capture")


def _captured(subject: Subject) -> tuple[Arguments, tuple[Tensor, ...]]:
    """Contents other than those of the capture, and the results of the replay on them."""
    other = _other_contents(subject)
    stream = torch.cuda.Stream(subject.device)
    stream.wait_stream(torch.cuda.current_stream(subject.device))
    with torch.cuda.stream(stream):
        run(subject)
        run(subject)
    torch.cuda.current_stream(subject.device).wait_stream(stream)
    if subject.op.signature.mutates:
        refill(subject, subject.arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        results = run(subject)
    refill(subject, other)
    graph.replay()
    torch.cuda.synchronize(subject.device)
    return other, results


def rubbish(subject: Subject) -> None:
    """Pass invalid slots: the call may raise or ignore them, but must not write outside the caches."""
    slots = subject.placed["slot_mapping"]
    beyond = subject.case.dims["pages"] * subject.case.dims["page_size"]
    slots.tensor[0::3] = beyond
    slots.tensor[1::3] = -2
    slots.remember()
    try:
        run(subject)
    except TargetRaised as error:
        if not isinstance(error.__cause__, InvalidArgument):
            raise
    check_memory(subject)


def past_32_bits(subject: Subject) -> None:
    """Call with tensors past 2**31 elements, and check some entries against the oracle."""
    results: Sequence[Tensor] = run(subject)
    if not subject.op.signature.mutates:
        check_forms(subject, results)
    check_memory(subject)
    changed = None
    pages = large.used_pages_of(subject)
    grouped = "groups" in subject.op.signature.binders
    if pages is not None:
        changes = {n: subject.placed[n].changed_inside() for n in mutated(subject.op)}
        changed = {n: c.index_select(0, pages) for n, c in changes.items()}
        results = [r.index_select(0, pages) for r in results]
        for name, change in changes.items():
            if int(change.sum()) > int(changed[name].sum()):
                subject.report("writes elsewhere", f"pages of `{name}` have changed that no slot names")
    elif subject.op.signature.mutates and (grouped or large.leading_dim(subject.op) is not None):
        rows = large.checked_groups(subject) if grouped else large.checked_entries(subject)
        changed = {n: subject.placed[n].changed_inside().index_select(0, rows) for n in mutated(subject.op)}
    arguments, some = large.part(subject, results)
    check_values(subject, some, arguments, changed=changed, skip=large.sums_over_entries(subject.op))


def gradient(subject: Subject) -> None:
    """Check the gradients from autograd against the oracle of the backward op on what the forward returned."""
    op, options = subject.op, subject.arguments.options
    backward = OPS[op.gradient]
    wanted = [o.name.removeprefix("grad_") for o in backward.signature.outputs]
    saved = run_forward(subject, OPS[op.gradient_through] if op.gradient_through else op)
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
        must_claim(backward, subject.backend, arguments.tensors, arguments.options)
    leaves: dict[str, Tensor | None] = {
        n: t.detach().requires_grad_(n in wanted) if t is not None else None for n, t in subject.tensors.items()
    }
    with torch.enable_grad():
        results = called(op, subject.backend, leaves, options)
        asked = [t for n in wanted if (t := leaves[n]) is not None]
        found = iter(differentiated(_varying(op, results), asked, _varying(op, given)))
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


def differentiated(results: Sequence[Tensor], asked: Sequence[Tensor], given: Sequence[Tensor]) -> Sequence[Tensor]:
    """`torch.autograd.grad`, with errors of the target's backward distinguished from errors of the suite."""
    try:
        with all_threads():
            return torch.autograd.grad(results, asked, given)
    except Exception as error:
        raise TargetRaised(f"in the backward: {error}") from error


def must_claim(op: Op, backend: str, tensors: Any, options: Any) -> None:
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


def run_forward(subject: Subject, variant: Op) -> dict[str, Tensor]:
    """What the forward (the variant that runs when a gradient is due) returns, by name."""
    options = _options_of(variant, subject.arguments.options)
    must_claim(variant, subject.backend, subject.tensors, options)
    with torch.no_grad():
        results = called(variant, subject.backend, subject.tensors, options)
    return {o.name: r for o, r in zip(variant.signature.outputs, results, strict=True)}


Probe = Callable[[Subject], None]

PROBES: dict[str, Probe] = {
    "values": values,
    "nan": nonfinite,
    "inf": nonfinite,
    "-inf": nonfinite,
    "magnitude": magnitude,
    "out": out,
    "repeat": repeat,
    "stale": stale,
    "gradient": gradient,
    "autograd": autograd,
    "capture": capture,
    "rubbish": rubbish,
    "large": past_32_bits,
}
"""The probes by name."""

OF_THE_OP = ("autograd",)
"""Probes that check an op's own definition and run no target."""


def not_declared(implementation: Implementation, probe: str) -> str | None:
    """Why the record of an implementation that claims the call exempts it from a probe; None if it does not."""
    if implementation.numerics is not None:
        return f"different numerics are declared ({implementation.numerics})"
    if probe == "repeat" and not implementation.deterministic:
        return "not deterministic (deterministic=False)"
    if probe == "capture" and not implementation.capturable:
        return "not for graph capture (capturable=False)"
    return None
