"""From an attempt to its plan: judge every candidate, and take the first that can be imported and configured."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from opmux import policy, tuning
from opmux.declared.configs import as_mapping, fields_text
from opmux.declared.implementation import Implementation, Priority
from opmux.errors import BackendFault, UnsupportedCall
from opmux.log import announce_once, logger
from opmux.planning import resolver
from opmux.planning.report import refusal_text
from opmux.running import background, modes, quarantine
from opmux.running.attempt import Attempt
from opmux.running.targets import Plan, kernels_of, prepare


def plan(attempt: Attempt, awaits: bool = True) -> Plan:
    """Choose for an attempt; a candidate that cannot be imported or configured is quarantined, and the next is tried.

    Args:
        attempt: the call.
        awaits: whether another implementation may run while the best one is being built in the background.

    Raises:
        UnsupportedCall: where no implementation that may run takes the call.
        BackendFault: where a failed candidate may not be skipped: it was asked for, or the policy is strict.
    """
    while True:
        around = circumstances(attempt)
        if not awaits:
            around = replace(around, building={})
        resolution = resolver.resolve(attempt.call, attempt.op.implementations, around)
        nothing_ready = bool(around.building) and not resolution.accepted
        if nothing_ready:
            around = replace(around, building={})
            resolution = resolver.resolve(attempt.call, attempt.op.implementations, around)
        chosen = _choice(attempt, resolution, around.policy.strict)
        fallback = bool(resolution.passed_over) or _has_only_the_reference(attempt, resolution)
        known = known_config(chosen.full_name, resolution)
        made = prepare(attempt, chosen, known, fallback, around.policy.check)
        if made is not None:
            _tell(attempt, made)
            better = resolution.awaited[0].name if resolution.awaited else ""
            in_call = around.policy.build == policy.BACKGROUND and background.built_in_call(attempt, chosen)
            waits = nothing_ready or in_call or attempt.forced is not None
            return replace(made, awaits=better, job=around.building.get(better), waits=waits)


def _tell(attempt: Attempt, made: Plan) -> None:
    """Log a plan, with its config and its kernels, at level info."""
    if not logger.isEnabledFor(logging.INFO):
        return
    parts = [f"{attempt.op.name} on {attempt.call.arch.name} -> {made.implementation.full_name}"]
    config = as_mapping(made.config)
    if config:
        parts.append(fields_text(config))
    kernels = kernels_of(attempt, made.implementation, made.config)
    if kernels:
        parts.append(f"launches {', '.join(kernels)}")
    logger.info("plan: %s", "; ".join(parts))


def resolve(attempt: Attempt, awaits: bool = True) -> resolver.Resolution:
    """Judge every implementation of the op for an attempt, under the current policy and quarantine.

    Args:
        attempt: the call.
        awaits: whether an implementation that is being built in the background is no candidate yet.
    """
    around = circumstances(attempt)
    if not awaits:
        around = replace(around, building={})
    return resolver.resolve(attempt.call, attempt.op.implementations, around)


def circumstances(attempt: Attempt) -> resolver.Circumstances:
    """What the choice depends on, apart from the call."""
    op, call = attempt.op, attempt.call
    tuned, estimates = tuning.evidence(op, call)
    rules = policy.current()
    background_builds = rules.build == policy.BACKGROUND
    return resolver.Circumstances(
        policy=rules,
        quarantined=quarantine.quarantined_for(op.name, call.arch.name, attempt.key),
        deterministic=modes.deterministic_mode(),
        forced=attempt.asked,
        tuned=tuned,
        estimates=estimates,
        building=background.awaited_for(op.name, call.arch.name, attempt.key) if background_builds else {},
    )


def _choice(attempt: Attempt, resolution: resolver.Resolution, strict: bool) -> Implementation:
    """The first taker, if the policy lets it run; ``strict`` is the policy's.

    Raises:
        UnsupportedCall: where there is none.
        BackendFault: where the policy is strict and a better implementation is quarantined.
    """
    op, call, forced = attempt.op, attempt.call, attempt.forced
    if not resolution.accepted:
        strictly = ", and the policy is strict" if strict and call.arch.is_gpu else ""
        why = strictly if forced is None else f" for backend={forced!r}"
        raise UnsupportedCall(refusal_text(op, call, resolution, why))
    if _has_only_the_reference(attempt, resolution) and not op.in_place_of:
        announce_once(
            ("only the reference", op.name, call.arch.name),
            logging.WARNING,
            "%s",
            refusal_text(op, call, resolution, "; the reference runs"),
        )
    if strict and forced is None and resolution.passed_over:
        better = resolution.passed_over[0]
        raise BackendFault(
            f"{op.name}: {better.name} is in quarantine, and the policy is strict: {better.reason}\n"
            f"  call:      {attempt}\n"
            f"  try:       fix the cause and call opmux.quarantine_clear(), or disable it"
        )
    return resolution.accepted[0].implementation


def _has_only_the_reference(attempt: Attempt, resolution: resolver.Resolution) -> bool:
    """Whether a call on a GPU finds nothing but the reference, which it did not ask for."""
    takers = resolution.accepted
    return (
        attempt.forced is None
        and not resolution.awaited
        and attempt.call.arch.is_gpu
        and all(v.implementation.priority == Priority.REFERENCE for v in takers)
    )


def known_config(name: str, resolution: resolver.Resolution) -> tuple[Mapping[str, Any], str] | None:
    """The config that was measured for an implementation, and which record or row it is of; None where none was.

    A record of this very point comes first, then the measured row of this point, a record of a near size, and the
    measured row of a near size.
    """
    tuned = resolution.tuned.of(name) if resolution.tuned is not None else None
    estimate = resolution.estimates.times.get(name)
    record = None if tuned is None or tuned.config is None else (tuned.config, tuned.note)
    row = None
    if estimate is not None and estimate.config is not None:
        row = (estimate.config, f"measured {'here' if estimate.measured else 'near'}, {estimate.where}")
    row_first = estimate is not None and estimate.measured and not (tuned is not None and tuned.exact)
    return (row or record) if row_first else (record or row)
