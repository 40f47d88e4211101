"""From an attempt to its plan: judge every candidate, and take the first that can be imported and configured."""

import logging
from collections.abc import Mapping
from typing import Any

from opmux import policy, tuning
from opmux.declared.configs import make_config
from opmux.declared.implementation import Implementation, Priority
from opmux.errors import PLUGIN_FAULTS, BackendFault, UnsupportedCall
from opmux.log import announce_once
from opmux.planning import resolver
from opmux.planning.report import refusal_text
from opmux.running import faults, quarantine
from opmux.running.attempt import Attempt
from opmux.running.targets import Plan, load_function, load_target, make_run


def plan(attempt: Attempt) -> Plan:
    """Choose for an attempt; a candidate that cannot be imported or configured is quarantined, and the next is tried.

    Raises:
        UnsupportedCall: where no implementation that may run takes the call.
        BackendFault: where a failed candidate may not be skipped: it was asked for, or the policy is strict.
    """
    while True:
        resolution = resolve(attempt)
        implementation = _choice(attempt, resolution)
        made = _prepared(attempt, implementation, resolution)
        if made is not None:
            return made


def resolve(attempt: Attempt) -> resolver.Resolution:
    """Judge every implementation of the op for an attempt, under the current policy and quarantine."""
    return resolver.resolve(attempt.call, attempt.op.implementations, circumstances(attempt))


def circumstances(attempt: Attempt) -> resolver.Circumstances:
    """What the choice depends on, apart from the call."""
    op, call = attempt.op, attempt.call
    return resolver.Circumstances(
        policy=policy.current(),
        quarantined=quarantine.quarantined_for(op.name, call.arch.name, attempt.key),
        deterministic=resolver.deterministic_mode(),
        forced=attempt.asked,
        tuned=tuning.lookup(op, call),
        estimates=tuning.estimates(op, call),
    )


def _choice(attempt: Attempt, resolution: resolver.Resolution) -> Implementation:
    """The first taker, if the policy lets it run.

    Raises:
        UnsupportedCall: where there is none.
        BackendFault: where the policy is strict and a better implementation is quarantined.
    """
    op, call, forced, strict = attempt.op, attempt.call, attempt.forced, policy.current().strict
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
        and attempt.call.arch.is_gpu
        and all(v.implementation.priority == Priority.REFERENCE for v in takers)
    )


def _prepared(attempt: Attempt, implementation: Implementation, resolution: resolver.Resolution) -> Plan | None:
    """The plan that runs an implementation, or None where the implementation was quarantined instead."""
    op, arch = attempt.op, attempt.call.arch
    try:
        target = load_target(op, implementation, attempt.forced)
    except PLUGIN_FAULTS as error:
        reason = f"{type(error).__name__}: {error}"
        told = f" cannot be loaded: {reason}; fix its installation, or omit backend="
        faults.pass_over(attempt, implementation, error, scope=quarantine.ARCH, reason=reason, told=told)
        return None
    try:
        config, _ = config_of(attempt, implementation, resolution)
    except PLUGIN_FAULTS as error:
        reason = config_fault(error)
        told = (
            f": {reason}\n"
            f"  call:      {attempt}\n"
            f"  try:       another backend (see opmux.explain), or report it to its authors"
        )
        faults.pass_over(attempt, implementation, error, scope=quarantine.PLAN, reason=reason, told=told)
        return None
    fallback = bool(resolution.passed_over) or _has_only_the_reference(attempt, resolution)
    return Plan(implementation, arch, config, fallback, make_run(op, arch, implementation, target, config))


def config_of(attempt: Attempt, chosen: Implementation, resolution: resolver.Resolution) -> tuple[Any, str]:
    """The config that the target will get, and where it came from: ``tuned``, ``heuristic`` or ``default``.

    A target whose record declares no config takes none; then a tuned record's config is not used.

    Raises:
        ValueError: where the config does not fit the record's ``config_schema``.
        Exception: whatever the config function raises.
    """
    if chosen.config is None:
        return None, "default"
    found = known_config(chosen.full_name, resolution)
    if found is not None:
        return make_config(chosen, dict(found[0])), "tuned"
    function = load_function(chosen.config) if isinstance(chosen.config, str) else chosen.config
    labels = [rule.feature(attempt.op.signature).label for rule in chosen.features]
    given = function(attempt.call.arch, {label: attempt.call.features[label] for label in labels})
    return make_config(chosen, given), "heuristic"


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


def config_fault(error: BaseException) -> str:
    """The reason given for an implementation whose config function failed."""
    return f"its config function raised {type(error).__name__}: {error}"
