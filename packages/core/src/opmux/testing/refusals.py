"""Refusals: a call that breaks a declared constraint is refused with that reason, and is not run."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from opmux import dispatch, resolver
from opmux.errors import UnsupportedCall
from opmux.implementation import AtLeast, AtMost, Constraint, Implementation, MultipleOf, OneOf
from opmux.op import Op
from opmux.testing import execution
from opmux.testing.case import Case
from opmux.testing.comparison import Finding
from opmux.testing.inputs import Arguments, make_arguments

PREFIX = "@refusal="


def check_refused(backend: str, case: Case, device: torch.device, claim: execution.Claim) -> Finding | None:
    """A case that the backend does not claim: forcing the backend on it must raise, with the reasons.

    Returns:
        What is wrong, or None.
    """
    from opmux.testing.checks import place

    op = case.definition
    if not claim.rejected:
        return None  # the backend does not implement the op at all
    for name, reason in claim.rejected.items():
        raised = _raised(op, name, reason)
        if raised is not None:
            return raised
    arguments = make_arguments(case, device)
    placed = place(case, op, arguments)
    given = {n: placed[n].tensor if n in placed else None for n in arguments.tensors}
    return _must_refuse(op, backend, given, arguments.options, claim.rejected.values())


def _raised(op: Op, name: str, reason: str) -> Finding | None:
    """A constraint that raises is a refusal by accident."""
    for implementation in op.implementations:
        if implementation.full_name == name:
            for constraint in implementation.when:
                if reason.startswith(f"{type(constraint).__name__} raised "):
                    return Finding("refusal", f"a constraint of {name} does not refuse, it fails: {reason}")
    return None


def _must_refuse(op: Op, backend: str, tensors: Any, options: Any, reasons: Any) -> Finding | None:
    try:
        execution.call(op, backend, tensors, options)
    except UnsupportedCall as error:
        missing = [r for r in reasons if r not in str(error)]
        if missing:
            return Finding("refusal", f"the call is refused, but not with the declared reason {missing[0]!r}: {error}")
        return None
    return Finding("refusal", f"the call was run, though the resolver refuses it: {'; '.join(reasons)}")


def check_constraints(
    backend: str, op: Op, cases: Sequence[Case], device: torch.device
) -> tuple[list[tuple[str, Finding]], list[str]]:
    """Break every constraint of every implementation once.

    Args:
        backend: the backend's name.
        op: the op.
        cases: where calls that break a constraint are looked for, before one is made up.
        device: the device whose arch counts.

    Returns:
        What is wrong, each with an id for `run_refusal`; and the constraints for which no breaking call was found.
    """
    findings: list[tuple[str, Finding]] = []
    unbroken: list[str] = []
    for implementation in execution.implementations(op, backend):
        for place, constraint in enumerate(implementation.when):
            found = _breaking(op, implementation, constraint, cases, device)
            if found is None:
                unbroken.append(f"{op.name}: {implementation.full_name}: {constraint!r}")
                continue
            case, reason = found
            finding = _check_one(op, implementation, case, reason, device)
            if finding is not None:
                findings.append((f"{PREFIX}{implementation.full_name}:{place}", finding))
    return findings, unbroken


def run_refusal(backend: str, op: Op, case: str, device: torch.device) -> Finding | None:
    """Check one constraint again, by the id that `check_constraints` gave."""
    from opmux.testing.cases import cases_of

    found, _ = check_constraints(backend, op, cases_of(op.name, "small"), device)
    return next((finding for name, finding in found if name == case), None)


def _breaking(
    op: Op, implementation: Implementation, constraint: Constraint, cases: Sequence[Case], device: torch.device
) -> tuple[Case, str] | None:
    """A case that breaks the constraint, and the reason that it gives."""
    candidates = (c for source in (cases, _made_up(constraint, cases)) for c in source)
    for case in candidates:
        reason = _reason(op, constraint, case, device)
        if reason is not None:
            return case, reason
    return None


def _reason(op: Op, constraint: Constraint, case: Case, device: torch.device) -> str | None:
    call = _call(op, case, device)
    try:
        return constraint.check(call)
    except Exception as error:  # a predicate is a plugin's code
        return f"{type(constraint).__name__} raised {type(error).__name__}: {error}"


def _call(op: Op, case: Case, device: torch.device) -> Any:
    from opmux.testing.checks import place

    arguments = make_arguments(case, device)
    placed = place(case, op, arguments)
    tensors = tuple(placed[n].tensor if n in placed else None for n in arguments.tensors)
    call, _ = dispatch.make_call(op, op.state, tensors, arguments.options, None)
    return call


def _made_up(constraint: Constraint, cases: Sequence[Case]) -> Iterator[Case]:
    """Cases changed so that a constraint on a size should break."""
    from opmux.testing.cases import is_valid

    if not isinstance(constraint, (MultipleOf, AtMost, AtLeast, OneOf)) or not cases:
        return
    base = cases[0]
    if constraint.name not in base.dims or isinstance(base.dims[constraint.name], tuple):
        return
    if isinstance(constraint, OneOf):
        sizes = [max((v for v in constraint.values if isinstance(v, int)), default=0) + 1]
    else:
        sizes = [constraint.bound + 1, constraint.bound - 1]
    for size in sizes:
        made = Case(base.op, base.dtypes, {**base.dims, constraint.name: size}, base.options)
        if 0 < size <= 1 << 20 and is_valid(made):
            yield made


def _check_one(
    op: Op, implementation: Implementation, case: Case, reason: str, device: torch.device
) -> Finding | None:
    """The resolver rejects the implementation, and forcing it by its full name raises with the reason."""
    name = implementation.full_name
    if " raised " in reason and _raised(op, name, reason):
        return _raised(op, name, reason)
    call = _call(op, case, device)
    verdicts = resolver.resolve(call, [implementation], resolver.Circumstances(dispatch.policy.current(), forced=name))
    status = verdicts.verdicts[0].status
    if status in (resolver.CHOSEN, resolver.ACCEPTED):
        return Finding("refusal", f"{name} is chosen for {case.id}, though its constraint says: {reason}")
    return None


__all__ = ["PREFIX", "Arguments", "check_constraints", "check_refused", "run_refusal"]
