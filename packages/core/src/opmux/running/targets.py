"""Targets: imported when first chosen, given their config, and wrapped only where a call needs more than the target."""

import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from opmux.arch import Arch
from opmux.callpath import wrappers
from opmux.callpath.op import Op
from opmux.declared.call import Call
from opmux.declared.configs import make_config
from opmux.declared.implementation import Implementation
from opmux.errors import PLUGIN_FAULTS, CaptureRefused
from opmux.running import faults, modes, quarantine
from opmux.running.attempt import FUNCTIONAL, Attempt
from opmux.running.build_process import Job
from opmux.running.results import check_results
from opmux.signatures.validation import check_call, describe_call

KnownConfig = tuple[Mapping[str, Any], str]
"""A measured config by parameter, and which record or row it is of."""


@dataclass(frozen=True)
class Plan:
    """The answer for all calls of one key.

    Attributes:
        implementation: what was chosen.
        config: what its target gets as ``config=``, bound in ``run``.
        fallback: a better implementation failed, or a GPU has only the reference.
        run: the target, wrapped where a call needs more than the target.
        awaits: the better implementation that is being built in the background, by full name; empty if there is none.
        job: that build.
        waits: whether calls wait for what the target builds, whatever the policy is: no other may run instead.
    """

    implementation: Implementation
    arch: Arch
    config: Any
    fallback: bool
    run: Callable[..., Any]
    awaits: str = ""
    job: Job | None = None
    waits: bool = False


def prepare(
    attempt: Attempt, implementation: Implementation, known: KnownConfig | None, fallback: bool, check: bool
) -> Plan | None:
    """The plan that runs an implementation; None where it cannot be imported or configured: it is quarantined then.

    Args:
        attempt: the call.
        implementation: what was chosen.
        known: its measured config, and where that comes from.
        fallback: whether something better failed, or a GPU has only the reference.
        check: whether the policy checks index data and results at every call.

    Raises:
        BackendFault: where no other implementation may take its place.
    """
    op, arch = attempt.op, attempt.call.arch
    try:
        target = load_target(op, implementation, attempt.forced)
    except PLUGIN_FAULTS as error:
        reason = f"{type(error).__name__}: {error}"
        told = f" cannot be loaded: {reason}; fix its installation, or omit backend="
        faults.pass_over(attempt, implementation, error, scope=quarantine.ARCH, reason=reason, told=told)
        return None
    try:
        config, _ = config_of(attempt, implementation, known)
    except PLUGIN_FAULTS as error:
        reason = config_fault(error)
        told = (
            f": {reason}\n"
            f"  call:      {attempt}\n"
            f"  try:       another backend (see opmux.explain), or report it to its authors"
        )
        faults.pass_over(attempt, implementation, error, scope=quarantine.PLAN, reason=reason, told=told)
        return None
    return Plan(implementation, arch, config, fallback, make_run(op, arch, implementation, target, config, check))


def config_of(attempt: Attempt, chosen: Implementation, known: KnownConfig | None) -> tuple[Any, str]:
    """The config that the target will get, and where it came from: ``tuned``, ``heuristic`` or ``default``.

    A target whose record declares no config takes none; then a measured config is not used.

    Raises:
        ValueError: where the config does not fit the record's ``config_schema``.
        Exception: whatever the config function raises.
    """
    if chosen.config is None:
        return None, "default"
    if known is not None:
        return make_config(chosen, dict(known[0])), "tuned"
    return make_config(chosen, answer_of(attempt, chosen, chosen.config)), "heuristic"


def answer_of(attempt: Attempt, implementation: Implementation, declared: str | Callable[..., Any]) -> Any:
    """What a function of a record answers that takes an arch and the values of the record's features.

    Args:
        attempt: the call.
        implementation: the record.
        declared: its ``config``, ``space`` or ``scores``.

    Raises:
        Exception: whatever the function raises.
    """
    function = load_function(declared) if isinstance(declared, str) else declared
    labels = [rule.feature(attempt.op.signature).label for rule in implementation.features]
    return function(attempt.call.arch, {label: attempt.call.features[label] for label in labels})


def scores_of(attempt: Attempt, chosen: Implementation) -> Iterator[tuple[float, Any]]:
    """Microseconds and a config each, the fastest first, where the record has a cost model.

    Raises:
        Exception: whatever its function raises, and `ValueError` where a config does not fit the record's schema.
    """
    if chosen.scores is not None:
        for time_us, config in answer_of(attempt, chosen, chosen.scores):
            yield float(time_us), make_config(chosen, config)


def kernels_of(attempt: Attempt, chosen: Implementation, config: Any) -> tuple[str, ...]:
    """The names of what the target launches, where its record tells them; a record that fails at that says so."""
    if chosen.kernels is None:
        return ()
    try:
        function = load_function(chosen.kernels) if isinstance(chosen.kernels, str) else chosen.kernels
        return tuple(map(str, function(attempt.op.name, attempt.call, config)))
    except PLUGIN_FAULTS as error:
        return (f"what its record cannot name: {type(error).__name__}: {error}",)


def config_fault(error: BaseException) -> str:
    """The reason given for an implementation whose config function failed."""
    return f"its config function raised {type(error).__name__}: {error}"


def load_target(op: Op, implementation: Implementation, forced: str | None = None) -> Callable[..., Any]:
    """Import the target; for the functional form of an in-place op, make it.

    Raises:
        Exception: whatever the import raises.
    """
    target = implementation.target
    if callable(target):
        if implementation.name == FUNCTIONAL and op.in_place_of is not None:
            inner = forced if forced is not None and not implementation.is_named(forced) else None
            made: Callable[..., Any] = target(inner)
            return made
        return target
    return load_function(target)


def load_function(named: str) -> Callable[..., Any]:
    """Import ``"package.module:function"``.

    Raises:
        Exception: whatever the import raises.
    """
    module, _, function = named.partition(":")
    loaded: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return loaded


def make_run(
    op: Op, arch: Arch, implementation: Implementation, target: Callable[..., Any], config: Any, check: bool
) -> Callable[..., Any]:
    """Wrap a target only where a call needs more: config, autocast, capture, versions, and with ``check`` checks."""
    run = target
    if implementation.takes_out and config is not None:
        run = functools.partial(target, config=config)
    elif config is not None or op.signature.mutates:
        run = _wrapper(op, config is not None)(target, config)
    if torch._C._is_any_autocast_enabled():
        run = _without_autocast(run)
    if not implementation.capturable:
        run = _refusing_capture(op, implementation, run)
    if check:
        run = _checked(op, arch, implementation, run)
    return run


def _without_autocast(run: Callable[..., Any]) -> Callable[..., Any]:
    """Turn autocast off around a target, for plans made under autocast; all other plans pay nothing for it."""
    autocast_keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(
        torch._C.DispatchKey.AutocastCUDA
    )

    def without_autocast(*tensors: Any, **options: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(autocast_keys):
            return run(*tensors, **options)

    return without_autocast


def _refusing_capture(op: Op, implementation: Implementation, run: Callable[..., Any]) -> Callable[..., Any]:
    def refusing_capture(*tensors: Any, **options: Any) -> Any:
        if modes.capturing():
            raise CaptureRefused(
                f"{op.name}: {implementation.full_name} cannot run during graph capture "
                "(it declares capturable=False)\n"
                f"  call:      {describe_call(op.signature, tensors, options)}\n"
                f"  try:       a backend that can (see opmux.explain), or capture around this call"
            )
        return run(*tensors, **options)

    return refusing_capture


@functools.cache
def _wrapper(op: Op, configured: bool) -> Callable[..., Any]:
    """Generated for the op: collecting arguments and passing them on would cost 0.5 us per call."""
    return wrappers.make_wrapper(op.signature, configured, bump_version)


def bump_version(tensor: Tensor) -> None:
    """Tell torch that a tensor was written by code that torch did not see."""
    if not tensor.is_inference():  # which has no version
        torch.autograd.graph.increment_version(tensor)


def _checked(op: Op, arch: Arch, implementation: Implementation, run: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*tensors: Any, **options: Any) -> Any:
        named = op.names(tensors)
        dims, normal = check_call(op.signature, named, options)
        if op.check_data is not None and not modes.capturing():
            op.check_data(**named, **normal)
        results = run(*tensors, **options)
        if "out" not in options:
            check_results(op, Call(op.signature, arch, named, normal, dims), implementation, results)
        return results

    return checked
