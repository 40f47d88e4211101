"""From candidates to a resolution: pure functions of the call, its implementations, the policy and the quarantine."""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from opmux.declared.call import Call
from opmux.declared.constraints import refusal
from opmux.declared.implementation import Implementation, Priority
from opmux.errors import PLUGIN_FAULTS
from opmux.policy import Policy
from opmux.running.build_process import Job
from opmux.tuning.choice import TunedChoice
from opmux.tuning.estimates import NOTHING, Estimate, Estimates

CHOSEN, ACCEPTED, REJECTED = "chosen", "accepted", "rejected"
DISABLED, QUARANTINED, UNAVAILABLE, BUILDING = "disabled", "quarantined", "unavailable", "building"


@dataclass(frozen=True)
class Verdict:
    """One candidate of a call, and the decision about it."""

    implementation: Implementation
    status: str
    reason: str
    order: tuple[Any, ...] = ()
    estimate: Estimate | None = None

    @property
    def name(self) -> str:
        return self.implementation.full_name


@dataclass(frozen=True)
class Resolution:
    """Every candidate of a call.

    Attributes:
        accepted: the candidates that take the call, the choice first.
        others: the rest, by name.
        passed_over: candidates that would rank before the choice if they were not quarantined.
        awaited: candidates that would rank before the choice if they were built.
        tuned: what the tuned records say about the call.
        estimates: what measured rows say of each implementation's time.
    """

    accepted: tuple[Verdict, ...]
    others: tuple[Verdict, ...]
    passed_over: tuple[Verdict, ...] = ()
    tuned: TunedChoice | None = None
    estimates: Estimates = NOTHING
    awaited: tuple[Verdict, ...] = ()

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """All verdicts, those that take the call first."""
        return (*self.accepted, *self.others)

    def without_choice(self, reason: str) -> "Resolution":
        """The same resolution with the choice rejected for this reason; the next that takes the call is the choice."""
        first, *takers = self.accepted
        if takers:
            takers[0] = replace(takers[0], status=CHOSEN)
        others = sorted([*self.others, replace(first, status=REJECTED, reason=reason)], key=lambda v: v.name)
        return replace(self, accepted=tuple(takers), others=tuple(others))


@dataclass(frozen=True)
class Circumstances:
    """What the choice depends on, apart from the call.

    Attributes:
        quarantined: full name -> reason, for this op, arch and key.
        deterministic: torch's deterministic mode is on.
        forced: the caller's ``backend=``.
        tuned: what the tuned records say about the call.
        estimates: what measured rows say of each implementation's time.
        building: full name -> what is being built for it in the background.
    """

    policy: Policy
    quarantined: Mapping[str, str] = field(default_factory=dict)
    deterministic: bool = False
    forced: str | None = None
    tuned: TunedChoice | None = None
    estimates: Estimates = NOTHING
    building: Mapping[str, Job] = field(default_factory=dict)


def resolve(call: Call, implementations: Sequence[Implementation], around: Circumstances) -> Resolution:
    """Judge every implementation and rank those that take the call.

    The order is total and does not depend on the order of installation: forced by the caller, preferred by policy,
    record of this very point, predicted time, record of a near point, priority band, name. Candidates whose times are
    known stand together, in the order of these, where the highest band among them stands.
    """
    judged = [(i, *_judge(call, i, around)) for i in implementations]
    times = around.estimates.times
    band = max((i.priority for i, status, _ in judged if status == ACCEPTED and i.full_name in times), default=None)
    takers: list[Verdict] = []
    others: list[Verdict] = []
    for implementation, status, reason in judged:
        kept = takers if status == ACCEPTED else others
        estimate = times.get(implementation.full_name)
        kept.append(Verdict(implementation, status, reason, _order(implementation, around, band), estimate))
    takers.sort(key=lambda v: v.order)
    others.sort(key=lambda v: v.name)
    passed_over: tuple[Verdict, ...] = ()
    awaited: tuple[Verdict, ...] = ()
    if takers:
        first = takers[0]
        takers[0] = replace(first, status=CHOSEN, reason=_why(first, around))
        better = [v for v in others if v.order < first.order]
        passed_over = tuple(v for v in better if v.status == QUARANTINED)
        awaited = tuple(sorted((v for v in better if v.status == BUILDING), key=lambda v: v.order))
    return Resolution(tuple(takers), tuple(others), passed_over, around.tuned, around.estimates, awaited)


def _order(implementation: Implementation, around: Circumstances, band: int | None) -> tuple[Any, ...]:
    """The sort key of a candidate.

    Args:
        implementation: the candidate.
        around: what the order depends on besides.
        band: the highest band among the takers whose times are known; None where there is none.
    """
    name, tuned = implementation.full_name, around.tuned
    picked = tuned is not None and tuned.picks and tuned.backend == name
    exact = picked and tuned is not None and tuned.exact
    estimate = around.estimates.times.get(name)
    timed = estimate is not None and band is not None
    return (
        around.policy.preference(implementation.backend, name),
        # A record that a person wrote for this very point comes before the measured rows of that point.
        0 if exact else 1 if estimate is not None and estimate.compared else 2,
        estimate.time_us if estimate is not None and estimate.compared else 0.0,
        # Where times are known, a record of another point does not pick.
        not (picked and band is None),
        -max(band, implementation.priority) if timed and band is not None else -implementation.priority,
        not timed,
        estimate.time_us if timed and estimate is not None else 0.0,
        -implementation.priority,
        implementation.backend,
        implementation.name,
    )


def _why(first: Verdict, around: Circumstances) -> str:
    """Why the first of the takers is the choice: where nothing else decided, what it is ranked by."""
    if around.forced is not None:
        return f"asked for by backend={around.forced!r}"
    if first.order[0] < len(around.policy.prefer):
        return "preferred by policy"
    tuned = around.tuned
    if tuned and tuned.picks and tuned.backend == first.name and (tuned.exact or first.estimate is None):
        return tuned.note
    return first.reason


def _standing(implementation: Implementation, around: Circumstances) -> str:
    """By what an accepted candidate is ranked: its time, else its priority, and why there is no time of it."""
    name = implementation.full_name
    estimate = around.estimates.times.get(name)
    if estimate is not None:
        return str(estimate)
    why_not = around.estimates.why_not(name)
    return f"priority {int(implementation.priority)}{f'; {why_not}' if why_not else ''}"


def _judge(call: Call, implementation: Implementation, around: Circumstances) -> tuple[str, str]:
    name = implementation.full_name
    if around.forced is not None and not implementation.is_named(around.forced):
        return REJECTED, f"not asked for: backend={around.forced!r}"
    if not any(call.arch.matches(pattern) for pattern in implementation.archs):
        return REJECTED, f"archs: {', '.join(implementation.archs)}, this is {call.arch}"
    if around.forced is None:
        for entry in around.policy.disabled:
            if entry.rules_out(call.signature.name, implementation.backend, name):
                return DISABLED, f"disabled by {entry.by}"
    if name in around.quarantined and around.forced is None:
        return QUARANTINED, around.quarantined[name]
    if name in around.building and around.forced is None:
        return BUILDING, f"{around.building[name].build.name} is being built in the background"
    last_resort = implementation.priority == Priority.REFERENCE
    if around.policy.strict and last_resort and call.arch.is_gpu and around.forced is None:
        return REJECTED, "not taken under strict unless asked for"
    missing = [module for module in implementation.requires if not _importable(module)]
    if missing:
        return UNAVAILABLE, f"needs {', '.join(missing)}, not installed: pip install {' '.join(missing)}"
    if around.deterministic and not implementation.deterministic:
        return REJECTED, "not deterministic, and torch.use_deterministic_algorithms is on"
    asked = name == around.forced or name in around.policy.prefer
    if implementation.numerics is not None and not asked:
        return REJECTED, f"different numerics ({implementation.numerics}): only when asked for by name"
    if implementation.priority == Priority.EXPERIMENTAL and not asked:
        return REJECTED, "experimental: only when asked for by name"
    for constraint in implementation.when:
        reason = refusal(constraint, call)
        if reason is not None:
            return REJECTED, reason
    return ACCEPTED, _standing(implementation, around)


def _importable(module: str) -> bool:
    try:
        # Look for the package only: looking for a submodule would import it.
        return importlib.util.find_spec(module.partition(".")[0]) is not None
    except PLUGIN_FAULTS:  # a foreign import hook may raise anything
        return False
