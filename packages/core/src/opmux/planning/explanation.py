"""`opmux.explain`: which implementation takes a call and why, as data, with the reason against every other."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from opmux import arch as archs
from opmux.callpath.op import Op
from opmux.declared.configs import as_mapping, fields_text
from opmux.declared.implementation import Implementation
from opmux.dtypes import short_name_of
from opmux.errors import PLUGIN_FAULTS, invalid
from opmux.planning import resolver
from opmux.planning.forced import unknown_backend
from opmux.planning.plan import known_config, resolve
from opmux.plugins import loading
from opmux.running.attempt import Attempt, attempt_of
from opmux.running.targets import config_fault, config_of, kernels_of, scores_of
from opmux.tables import text_table


@dataclass(frozen=True)
class Candidate:
    """One implementation that was considered.

    Attributes:
        status: chosen, accepted, rejected, disabled, quarantined, building or unavailable.
        caveats: what the op leaves unspecified and it does not compute as the reference does, in words.
        time_us: how long it takes the call, microseconds; None where measured rows say nothing about it.
        time_source: ``measured``, or ``predicted, from 6 rows``; None without a time.
    """

    name: str
    distribution: str
    version: str
    status: str
    reason: str
    caveats: tuple[str, ...] = ()
    time_us: float | None = None
    time_source: str | None = None


MOST_SCORES = 3
"""Configs next to the one in use that are shown."""


@dataclass(frozen=True)
class Score:
    """A config, and the microseconds that the cost model of its implementation predicts."""

    time_us: float
    config: dict[str, Any]


@dataclass(frozen=True)
class Explanation:
    """Which implementation takes a call, and why; prints as a table.

    Attributes:
        call: the call as text.
        key: dtypes, flags and features that all calls of this plan share.
        chosen: one of the candidates, or None where none accepts the call.
        config: what the target will get as ``config=``.
        config_source: ``tuned``, ``heuristic`` or ``default``.
        scores: where the implementation has a cost model, what that predicts of the config, first, and of those that
            it would take next; empty otherwise.
    """

    op: str
    arch: str
    call: str
    key: str
    chosen: Candidate | None
    config: dict[str, Any] | None
    config_source: str
    candidates: tuple[Candidate, ...]
    failed_plugins: tuple[loading.FailedPlugin, ...]
    scores: tuple[Score, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data, ``chosen`` by name."""
        return {
            "op": self.op,
            "arch": self.arch,
            "call": self.call,
            "key": self.key,
            "chosen": self.chosen.name if self.chosen else None,
            "config": self.config,
            "config_source": self.config_source,
            "scores": [asdict(score) for score in self.scores],
            "candidates": [{**asdict(c), "caveats": list(c.caveats)} for c in self.candidates],
            "failed_plugins": [
                {"name": f.name, "distribution": f.distribution, "version": f.version, "reason": f.reason}
                for f in self.failed_plugins
            ],
        }

    def rows(self) -> list[list[str]]:
        """The candidates as cells: rank, name, package, status, reason."""
        rows, rank = [], 0
        for candidate in self.candidates:
            taken = candidate.status in (resolver.CHOSEN, resolver.ACCEPTED)
            rank += taken
            package = f"{candidate.distribution} {candidate.version}"
            reason = "; ".join((candidate.reason, *(candidate.caveats if taken else ())))
            rows.append([str(rank) if taken else "-", candidate.name, package, candidate.status, reason])
        return rows

    def __str__(self) -> str:
        title = f"{self.op} on {self.arch} -> {self.chosen.name if self.chosen else 'nothing'}"
        lines = [title.ljust(53) + f" plan key: {self.key}"]
        table = text_table([], self.rows())
        lines += ["  " + line for line in table.splitlines()]
        if self.failed_plugins:
            lines.append("plugins that failed to load")
            failed = text_table([], [[f.name, f"{f.distribution} {f.version}", f.reason] for f in self.failed_plugins])
            lines += ["  " + line for line in failed.splitlines()]
        if self.chosen is not None and archs.parse_arch(self.arch).is_gpu and self.chosen.name == "reference":
            lines.append(f"nothing but the reference takes this call: install a backend for {self.arch}")
        return "\n".join(lines)


def explain(op: Any, *tensors: Any, arch: str | None = None, backend: str | None = None, **options: Any) -> Explanation:
    """Say which implementation would take a call, and why the others would not.

    Args:
        op: the op, as ``opmux.rms_norm``.
        *tensors: the op's tensors; meta tensors will do.
        arch: resolve as if on this arch (``gfx942``); by default the tensors' own device decides.
            ``OPMUX_ARCH`` replaces that default.
        backend: as in the op's own ``backend=``.
        **options: the op's options, and tensors given by name.

    Returns:
        The explanation, as data; ``print`` shows it as a table.

    Raises:
        InvalidArgument: where the call breaks the op's signature, or ``arch`` names none.
        UnknownBackend: where ``backend`` names none.
    """
    definition = getattr(op, "op", None)
    if not isinstance(definition, Op):
        meant = f"pass opmux.{op.name}" if isinstance(op, Op) else "see `opmux ops`"
        got = f"the Op of {op.name}" if isinstance(op, Op) else repr(op)
        raise invalid("explain", "op", "an op, as opmux.rms_norm", got, meant)
    loading.ensure_loaded()
    if backend is not None and (complaint := unknown_backend(definition, backend)):
        raise complaint
    arguments, filled = definition.bind_arguments(tensors, options)
    where = archs.known_arch(arch) if arch is not None else _default_arch(arguments)
    attempt = attempt_of(definition, definition.state, arguments, filled, backend, where)
    return _explanation_of(attempt, resolve(attempt))


def _default_arch(tensors: Sequence[Any]) -> archs.Arch | None:
    if os.environ.get("OPMUX_ARCH") or (isinstance(tensors[0], torch.Tensor) and tensors[0].is_meta):
        return archs.assumed_arch()
    return None


def _key_text(attempt: Attempt) -> str:
    op, call = attempt.op, attempt.call
    dtypes = [short_name_of(t.dtype) if t is not None else "-" for t in call.tensors.values()]
    flags = [f"{o.name}={_flag(call.options[o.name])}" for o in op.signature.options if o.is_flag]
    features = [f"{label} {_holds(value)}" for label, value in call.features.items() if label in _labels(op)]
    return " | ".join(part for part in (" ".join(dtypes), " ".join(flags), ", ".join(features)) if part)


def _labels(op: Op) -> set[str]:
    return {f.label for f in op.state.features}


def _flag(value: Any) -> str:
    return short_name_of(value) if isinstance(value, torch.dtype) else str(value).lower()


def _holds(value: Any) -> str:
    return {True: "yes", False: "no"}.get(value, f"= {value}") if isinstance(value, bool) else f"= {value}"


def _explanation_of(attempt: Attempt, resolution: resolver.Resolution) -> Explanation:
    """A resolution as data. The chosen candidate computes its config; one that fails at that is skipped."""
    op, call = attempt.op, attempt.call
    config, source, note = None, "default", ""
    scores: tuple[Score, ...] = ()
    while resolution.accepted:
        chosen = resolution.accepted[0].implementation
        try:
            made, source = config_of(attempt, chosen, known_config(chosen.full_name, resolution))
        except PLUGIN_FAULTS as error:  # a plugin's code: a call skips a candidate without a config, and so does this
            resolution = resolution.without_choice(config_fault(error))
            continue
        config = as_mapping(made)
        note = _config_note(chosen.full_name, config, source, call.arch.name, resolution)
        kernels = kernels_of(attempt, chosen, made)
        launched = f"launches {', '.join(kernels)}" if kernels else ""
        scores, scored = _scores(attempt, chosen, config)
        note = "; ".join(part for part in (note, scored, launched) if part)
        break
    candidates = tuple(
        Candidate(
            v.name,
            v.implementation.distribution,
            v.implementation.version,
            v.status,
            _reason(v, note),
            tuple(map(str, v.implementation.caveats)),
            None if v.estimate is None else v.estimate.time_us,
            None if v.estimate is None else v.estimate.source,
        )
        for v in resolution.verdicts
    )
    chosen_candidate = candidates[0] if resolution.accepted else None
    return Explanation(
        op.name,
        call.arch.name,
        str(attempt),
        _key_text(attempt),
        chosen_candidate,
        config,
        source,
        candidates,
        loading.failed_plugins(),
        scores,
    )


def _scores(attempt: Attempt, chosen: Implementation, config: Any) -> tuple[tuple[Score, ...], str]:
    """What the cost model predicts of a config and of those next to it, as data and as text."""
    try:
        found = [Score(time_us, as_mapping(one) or {}) for time_us, one in scores_of(attempt, chosen)]
    except PLUGIN_FAULTS as error:  # a plugin's code: the call itself does not need it
        return (), f"its cost model raised {type(error).__name__}: {error}"
    own = [score for score in found if score.config == config]
    others = [score for score in found if score.config != config][:MOST_SCORES]
    if not others:
        return tuple(own), ""
    told = [f"{score.time_us:.3g} us with {_difference(score.config, config)}" for score in others]
    mine = f"{own[0].time_us:.3g} us, " if own else ""
    return (*own, *others), f"its cost model says {mine}next {', '.join(told)}"


def _difference(config: dict[str, Any], other: dict[str, Any]) -> str:
    """The fields of a config that differ from those of another one."""
    return fields_text({name: value for name, value in config.items() if other.get(name) != value}).replace(", ", " ")


def _reason(verdict: resolver.Verdict, note: str) -> str:
    """The reason as it is shown: of the choice, also its time where something else decided, and its config."""
    parts = [verdict.reason]
    if verdict.status == resolver.CHOSEN:
        if verdict.estimate is not None and str(verdict.estimate) != verdict.reason:
            parts.append(str(verdict.estimate))
        parts += [note] if note else []
    return "; ".join(parts)


def _config_note(chosen: str, config: Any, source: str, arch: str, resolution: resolver.Resolution) -> str:
    """The config as text and where it came from; a tuned record that is already the reason is not repeated."""
    tuned = resolution.tuned.of(chosen) if resolution.tuned is not None else None
    known = known_config(chosen, resolution)
    if config is None:
        unused = known is not None and source == "default"
        return f"the tuned config is not used: {chosen} takes none" if unused else ""
    text = fields_text(config)
    if source == "tuned" and known is not None:
        return text if resolution.accepted[0].reason == known[1] else f"{text} ({known[1]})"
    if tuned is not None:
        return f"{text} (heuristic: the tuned record has no config)"
    if chosen in resolution.estimates.times:
        return f"{text} (heuristic: no config was measured near enough)"
    if resolution.tuned is not None:
        return f"{text} (heuristic: no tuned record of {chosen} for this call)"
    return f"{text} (heuristic: no tuned record for {arch})"
