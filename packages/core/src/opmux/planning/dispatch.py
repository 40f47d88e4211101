"""The call path behind the generated one: checks that explain, routes, plans, first runs, faults.

A call comes here when it is not plain (`call`), when its key has no plan yet (`plan_and_run`), or when something was
raised on the direct way (`recover`).
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from opmux import near, policy, tuning
from opmux.arch import Arch, arch_of
from opmux.callpath import codegen
from opmux.callpath.op import OPS, Op, OpState, PlanTable
from opmux.declared.call import Call
from opmux.declared.implementation import Implementation, Priority
from opmux.errors import (
    BackendFault,
    BuildFailed,
    CaptureRefused,
    InvalidArgument,
    OpmuxError,
    UnknownBackend,
    UnsupportedCall,
    invalid,
)
from opmux.log import announce_once
from opmux.planning import resolver
from opmux.planning.report import describe_call, refusal_text
from opmux.plugins import loading
from opmux.running import faults, observe, outputs, targets
from opmux.signatures.validation import check_call


@dataclass(frozen=True)
class Forced:
    """A plan key with the caller's ``backend=``."""

    backend: str
    key: tuple[Any, ...]


def circumstances(op: Op, call: Call, key: tuple[Any, ...], forced: str | None) -> resolver.Circumstances:
    """What the choice for this call depends on beside the call."""
    return resolver.Circumstances(
        policy=policy.current(),
        quarantined=faults.quarantined_for(op.name, call.arch.name, key),
        deterministic=resolver.deterministic_mode(),
        forced=forced,
        tuned=tuning.lookup(op, call),
    )


def make_call(op: Op, state: OpState, tensors: Sequence[Any], options: Mapping[str, Any], arch: Arch | None) -> tuple[
    Call, tuple[Any, ...]
]:  # fmt: skip
    """Check a call and put it as constraints see it, with its key.

    Raises:
        InvalidArgument: where it breaks the signature.
    """
    named = op.names(tuple(tensors))
    dims, normal = check_call(op.signature, named, options)
    key = state.key_of(*tensors, **normal)
    features = {label: key[place] for label, place in state.layout.items()}
    where = arch if arch is not None else arch_of(tensors[0].device)
    return Call(op.signature, where, named, normal, dims, features), key


def execute(op: Op, tensors: Sequence[Any], options: Mapping[str, Any], backend: str | None, out: Any = None) -> Any:
    """Run a checked call on real tensors, no gradient: one lookup, then the plan's callable."""
    table = op.table
    key: Any = table.state.key_of(*tensors, **options)
    if backend is not None:
        key = Forced(backend, key)
    try:
        if out is None:
            return table[key](*tensors, **options)
        return outputs.run_into(table, key, tensors, options, out)
    except Exception as error:
        return recover(op, error, table, tensors, options, backend, out)


def unknown_backend(op: Op, backend: str) -> OpmuxError | None:
    """The complaint about a backend that nobody registered for this op, if so."""
    if not isinstance(backend, str):
        return invalid(op.name, "backend", "a name (str) or None", f"{backend!r}", "see `opmux backends`")
    if any(resolver.is_named(i, backend) for i in op.implementations):
        return None
    if op.in_place_of is not None and any(resolver.is_named(i, backend) for i in OPS[op.in_place_of].implementations):
        return None
    here = ", ".join(dict.fromkeys(n for i in op.implementations for n in (i.backend, i.full_name)))
    known = sorted(set(loading.known_names()))
    failed = [f for f in loading.failed_plugins() if f.name == backend.partition(":")[0]]
    if failed:
        return UnknownBackend(
            f"{op.name}: `backend` expected one of {here}, got {backend!r}, whose plugin failed to load: "
            f"{failed[0].reason}; mend it and see `opmux doctor`"
        )
    if backend in known:
        return UnknownBackend(
            f"{op.name}: `backend` expected one of {here}, got {backend!r}, which does not implement this op; "
            "leave backend= away to let the best one be chosen"
        )
    return UnknownBackend(
        f"{op.name}: `backend` expected one of {here}, got {backend!r}, which no installed plugin registers; "
        f"{near.backend_remedy(backend, known)}"
    )


def through_functional(op: Op, forced: str | None) -> str | None:
    """What ``backend=`` asks for: where only the functional form of an in-place op has it, that form and a copy."""
    if forced is None or op.in_place_of is None or any(resolver.is_named(i, forced) for i in op.implementations):
        return forced
    return targets.FUNCTIONAL_BACKEND


def plan_and_run(table: PlanTable, key: Any, /, *tensors: Any, **options: Any) -> Any:
    """The first call of a key: check it, choose, import, run, check what came back, remember."""
    op = table.state.op
    forced = key.backend if isinstance(key, Forced) else None
    bare_key = key.key if isinstance(key, Forced) else key
    if faults.capturing():
        raise CaptureRefused(
            f"{op.name}: no plan is made during graph capture, and this call has none yet\n"
            f"  call:      {describe_call(op, tensors, options)}\n"
            f"  try:       run the call once before the capture"
        )
    named = op.names(tensors)
    dims, normal = check_call(op.signature, named, options)
    refuse_gradient_into_mutated(op, named)
    if tensors[0].is_meta:
        empty = op.signature.empty_outputs(named, dims, normal)
        return _as_returned(empty)
    if loading.ensure_loaded() or op.state is not table.state:
        return execute(op, tensors, normal, forced)
    if forced is not None and (complaint := unknown_backend(op, forced)):
        raise complaint
    if policy.current().check and op.check_data is not None:
        op.check_data(**op.names(tuple(tensors)), **normal)
    call, _ = make_call(op, table.state, tensors, normal, None)
    asked = through_functional(op, forced)
    while True:
        resolution = resolver.resolve(call, op.implementations, circumstances(op, call, bare_key, asked))
        run, planned, recorded = _choose(op, call, resolution, bare_key, forced)
        if run is None:
            continue
        try:
            results = recorded(*tensors, **normal)
            if not op.signature.mutates:
                targets.check_results(op, planned.implementation, results, named, dims, normal)
        except Exception as error:
            judge_fault(op, error, planned.implementation, call.arch, bare_key, forced, tensors, normal)
            continue
        table.store(key, recorded, planned)
        return results


def _as_returned(results: tuple[Tensor, ...]) -> Any:
    if not results:
        return None
    return results[0] if len(results) == 1 else results


def refuse_gradient_into_mutated(op: Op, named: Mapping[str, Any]) -> None:
    """A tensor that is written in place must not require a gradient.

    Raises:
        InvalidArgument: names the tensor.
    """
    if op.signature.mutates and torch.is_grad_enabled():
        for name in op.signature.mutates:
            if named[name].requires_grad:
                raise InvalidArgument(
                    f"{op.name}: `{name}` expected a tensor that requires no gradient, since it is written in place, "
                    f"got one that does; pass {name}.detach(), or call it under torch.no_grad()"
                )


def _choose(
    op: Op, call: Call, resolution: resolver.Resolution, key: Any, forced: str | None
) -> tuple[Callable[..., Any] | None, Any, Any]:
    """The first taker, imported: (to run, what to remember of it, to remember); (None, ...) where its import failed."""
    takers = resolution.accepted
    strict = policy.current().strict
    only_reference = (
        bool(takers) and call.arch.is_gpu and all(v.implementation.priority == Priority.REFERENCE for v in takers)
    )
    if not takers:
        strictly = ", and the policy is strict" if strict and call.arch.is_gpu else ""
        why = strictly if forced is None else f" for backend={forced!r}"
        raise UnsupportedCall(refusal_text(op, call, resolution, why))
    if only_reference and forced is None and not op.in_place_of:
        announce_once(
            ("only the reference", op.name, call.arch.name),
            logging.WARNING,
            "%s",
            refusal_text(op, call, resolution, "; the reference runs"),
        )
    chosen = takers[0].implementation
    if strict and forced is None and resolution.passed_over:
        better = resolution.passed_over[0]
        raise BackendFault(
            f"{op.name}: {better.name} is in quarantine, and the policy is strict: {better.reason}\n"
            f"  call:      {describe_call(op, list(call.tensors.values()), call.options)}\n"
            f"  try:       opmux.quarantine_clear() once it is mended, or disable it"
        )
    try:
        target = targets.load_target(op, chosen, forced)
    except Exception as error:
        if faults.is_nobodys_fault(error):
            raise
        reason = f"{type(error).__name__}: {error}"
        if forced is not None or strict:
            raise BackendFault(
                f"{op.name}: {chosen.full_name} ({chosen.distribution} {chosen.version}) cannot be loaded: {reason}; "
                f"mend its installation, or leave backend= away"
            ) from error
        faults.quarantine(op.name, chosen, call.arch.name, faults.ARCH, reason)
        op.drop_plans()
        return None, None, None
    try:
        config, _ = targets.config_of(op, chosen, call, resolution)
    except Exception as error:
        if faults.is_nobodys_fault(error):
            raise
        reason = targets.config_fault(error)
        if forced is not None or strict:
            raise BackendFault(
                f"{op.name}: {chosen.full_name} ({chosen.distribution} {chosen.version}): {reason}\n"
                f"  call:      {describe_call(op, list(call.tensors.values()), call.options)}\n"
                f"  try:       another backend (see opmux.explain), or report it to its authors"
            ) from error
        faults.quarantine(op.name, chosen, call.arch.name, faults.PLAN, reason, key)
        return None, None, None
    fallback = bool(resolution.passed_over) or (only_reference and forced is None)
    run = targets.make_run(op, chosen, target, config)
    recorded = observe.observed(op, targets.Planned(chosen, call.arch, config, fallback, None), run)
    planned = targets.Planned(chosen, call.arch, config, fallback, recorded if chosen.takes_out else None)
    return run, planned, recorded


def is_last_resort(implementation: Implementation) -> bool:
    """The core's own: the reference, and the functional form of an in-place op, whose inner call has been judged."""
    return implementation.priority == Priority.REFERENCE or implementation.backend == targets.FUNCTIONAL_BACKEND


def judge_fault(
    op: Op,
    error: Exception,
    implementation: Implementation,
    arch: Arch,
    key: Any,
    forced: str | None,
    tensors: Sequence[Any],
    options: Mapping[str, Any],
) -> None:
    """Decide whose fault an exception is; returns where the next choice may run, raises where it may not."""
    if isinstance(error, OpmuxError) and not isinstance(error, BackendFault):
        raise error
    if faults.is_nobodys_fault(error) or is_last_resort(implementation):
        raise error
    if op.check_data is not None and not faults.capturing():
        op.check_data(**op.names(tuple(tensors)), **options)
    reason = str(error) if isinstance(error, BackendFault) else f"{type(error).__name__}: {error}"
    who = f"{implementation.full_name} ({implementation.distribution} {implementation.version})"
    launched = not isinstance(error, BuildFailed)
    if faults.capturing():
        raise CaptureRefused(
            f"{op.name}: {who} failed during graph capture, where nothing may take its place: {reason}; "
            "run the call once before the capture"
        ) from error
    if forced is not None or policy.current().strict:
        why = f"backend={forced!r} was asked for" if forced is not None else "the policy is strict"
        raise BackendFault(
            f"{op.name}: {who} failed, and {why}: {reason}\n"
            f"  call:      {describe_call(op, tensors, options)}\n"
            f"  try:       another backend (see opmux.explain), or report it to its authors"
        ) from error
    faults.quarantine(op.name, implementation, arch.name, faults.PLAN if launched else faults.ARCH, reason, key)
    op.drop_plans()
    if op.signature.mutates and launched:
        written = ", ".join(f"`{name}`" for name in op.signature.mutates)
        raise BackendFault(
            f"{op.name}: {who} failed while it was writing {written}, which may hold anything now: {reason}\n"
            f"  call:      {describe_call(op, tensors, options)}\n"
            f"  try:       restore {written} and call again: the next choice will run"
        ) from error


def bind(op: Op, tensors: Sequence[Any], options: Mapping[str, Any], backend: str | None) -> Callable[..., Any]:
    """Plan for these arguments; return the planned target with its options fixed, and nothing else around it."""
    arguments, filled = op.bind_arguments(tensors, options)
    if faults.capturing():
        raise CaptureRefused(
            f"{op.name}: no plan is made during graph capture, and bind makes one\n"
            f"  call:      {describe_call(op, arguments, filled)}\n"
            f"  try:       bind before the capture, and call what it returns inside"
        )
    loading.ensure_loaded()
    if backend is not None and (complaint := unknown_backend(op, backend)):
        raise complaint
    call, key = make_call(op, op.state, arguments, filled, None)
    asked = through_functional(op, backend)
    while True:
        resolution = resolver.resolve(call, op.implementations, circumstances(op, call, key, asked))
        run, _, _ = _choose(op, call, resolution, key, backend)
        if run is not None:
            present = frozenset(n for n, t in call.tensors.items() if t is not None)
            bound: Callable[..., Any] = codegen.make_bound(op.signature, run, dict(call.options), present)
            return bound


def recover(
    op: Op,
    error: Exception,
    table: PlanTable,
    tensors: Sequence[Any],
    options: Mapping[str, Any],
    backend: str | None,
    out: Any = None,
) -> Any:
    """Something was raised by a plan of ``table``: the caller's bad data, or the target's fault."""
    if isinstance(error, OpmuxError) and not isinstance(error, BackendFault):
        raise error
    named = op.names(tuple(tensors))
    _, normal = check_call(op.signature, named, options)
    key = table.state.key_of(*tensors, **normal)
    found: targets.Planned | None = table.plans.get(key if backend is None else Forced(backend, key))
    if found is None:
        raise error  # before a plan was stored: it has been judged
    known = faults.quarantined_for(op.name, found.arch.name, key)
    if found.implementation.full_name not in known or op.signature.mutates:
        judge_fault(op, error, found.implementation, found.arch, key, backend, tensors, normal)
    # Else another thread met the same fault first, and what runs now is not to blame for it.
    return execute(op, tensors, normal, backend, out)
