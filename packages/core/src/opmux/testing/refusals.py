"""Refusals: a call that breaks a declared constraint must be refused with its reason, and not run."""

import math
from collections.abc import Iterator
from typing import Any

import torch

from opmux import policy
from opmux.callpath.op import Op
from opmux.declared.call import Call
from opmux.declared.constraints import AtLeast, AtMost, Constraint, Equal, MultipleOf, OneOf, is_failure, refusal
from opmux.declared.implementation import Implementation
from opmux.errors import UnsupportedCall
from opmux.planning import resolver
from opmux.running.attempt import attempt_of
from opmux.running.faults import is_out_of_memory
from opmux.testing import execution
from opmux.testing.case import Case
from opmux.testing.cases import cases_of, is_valid
from opmux.testing.comparison import Finding
from opmux.testing.subject import Subject, prepare

PREFIX = "@refusal="
"""The prefix of the id of a broken constraint; that of a case begins with a dtype."""

LARGEST_MADE_UP = 1 << 20


def check_refused(subject: Subject) -> Finding | None:
    """Force the backend on a case that it does not claim: this must raise with the reasons.

    Returns:
        What is wrong, or None.
    """
    op, rejected = subject.op, subject.claim.rejected
    if not rejected:
        return None  # the backend does not implement the op at all
    for name, reason in rejected.items():
        if raised_in(op, name, reason):
            return Finding("refusal", f"a constraint of {name} does not refuse, it fails: {reason}")
    try:
        execution.call(op, subject.backend, subject.tensors, subject.arguments.options)
    except UnsupportedCall as error:
        missing = [r for r in rejected.values() if r not in str(error)]
        return (
            Finding("refusal", f"refused, but not for the declared reason {missing[0]!r}: {error}") if missing else None
        )
    except Exception as error:  # anything else is not a refusal
        return Finding("refusal", f"the call is not refused ({subject.claim.reason}), it raises {error!r}")
    return Finding("refusal", f"the call was run, though the resolver refuses it: {subject.claim.reason}")


def raised_in(op: Op, name: str, reason: str) -> bool:
    """Whether a constraint raised an exception, which counts as a refusal, but an accidental one."""
    return any(
        is_failure(constraint, reason)
        for implementation in op.implementations
        if implementation.full_name == name
        for constraint in implementation.when
    )


def check_constraints(backend: str, op: Op, device: torch.device) -> tuple[list[tuple[str, Finding]], list[str]]:
    """Break every constraint of every implementation once.

    Looks for breaking calls among the cases of the small profile, then makes some up.

    Args:
        backend: the backend's name.
        op: the op.
        device: the device whose arch is used.

    Returns:
        The findings, each with an id for `run_refusal`, and the constraints for which no breaking call was found.
    """
    findings: list[tuple[str, Finding]] = []
    unbroken: list[str] = []
    for implementation in execution.implementations(op, backend):
        for place, constraint in enumerate(implementation.when):
            broken = _broken_call(op, constraint, device)
            if broken is None:
                unbroken.append(f"{op.name}: {implementation.full_name}: {constraint!r}")
                continue
            finding = _check_one(implementation, *broken)
            if finding is not None:
                findings.append((f"{PREFIX}{implementation.full_name}:{place}", finding))
    return findings, unbroken


def run_refusal(backend: str, op: Op, case: str, device: torch.device) -> Finding | None:
    """Check one constraint again, by the id that `check_constraints` gave."""
    found, _ = check_constraints(backend, op, device)
    return next((finding for name, finding in found if name == case), None)


def _broken_call(op: Op, constraint: Constraint, device: torch.device) -> tuple[Case, Call, str] | None:
    """A case that breaks the constraint, its call, and the reason that the constraint gives."""
    cases = cases_of(op.name, "small")
    for source in (cases, _made_up(constraint, cases[0])):
        for case in source:
            try:
                subject = prepare("reference", case, device)
            except Exception as error:
                if is_out_of_memory(error):  # of other processes' cases: the next call may be smaller
                    continue
                raise
            arguments = subject.arguments
            call = attempt_of(op, op.state, tuple(subject.tensors.values()), arguments.options).call
            reason = refusal(constraint, call)
            if reason is not None:
                return case, call, reason
    return None


def _made_up(constraint: Constraint, base: Case) -> Iterator[Case]:
    """A case changed so that a constraint on a size should break."""
    name: str = constraint.second if isinstance(constraint, Equal) else getattr(constraint, "name", "")
    if not isinstance(constraint, (MultipleOf, AtMost, AtLeast, OneOf, Equal)) or name not in base.dims:
        return
    sizes: list[int]
    if isinstance(constraint, Equal):
        sizes = [math.prod(size) + 1 if isinstance(size := base.dims[name], tuple) else size + 1]
    elif isinstance(constraint, OneOf):
        sizes = [max((v for v in constraint.values if isinstance(v, int)), default=0) + 1]
    else:
        bound = base.dims.get(constraint.bound, 0) if isinstance(constraint.bound, str) else constraint.bound
        least = math.prod(bound) if isinstance(bound, tuple) else math.floor(bound)
        sizes = [least + 1, least - 1]
    for size in sizes:
        dim: Any = (size,) if isinstance(base.dims[name], tuple) else size
        made = Case(base.op, base.dtypes, {**base.dims, name: dim}, base.options)
        if 0 < size <= LARGEST_MADE_UP and is_valid(made):
            yield made


def _check_one(implementation: Implementation, case: Case, call: Call, reason: str) -> Finding | None:
    """Check that the constraint returns a reason without raising, and that the resolver rejects the implementation."""
    name = implementation.full_name
    if raised_in(case.definition, name, reason):
        return Finding("refusal", f"a constraint of {name} does not refuse, it fails: {reason}")
    around = resolver.Circumstances(policy.current(), forced=name)
    (verdict,) = resolver.resolve(call, [implementation], around).verdicts
    if verdict.status in (resolver.CHOSEN, resolver.ACCEPTED):
        return Finding("refusal", f"{name} is chosen for {case.id}, though its constraint says: {reason}")
    return None
