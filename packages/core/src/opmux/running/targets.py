"""Targets: imported when first chosen, given their config, and wrapped only where a call needs more than the target."""

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from opmux import policy
from opmux.arch import Arch
from opmux.callpath import codegen
from opmux.callpath.op import Op
from opmux.declared.call import Call
from opmux.declared.implementation import Implementation
from opmux.errors import CaptureRefused
from opmux.running import faults
from opmux.running.attempt import FUNCTIONAL
from opmux.running.results import check_results
from opmux.signatures.validation import check_call, describe_call


@dataclass(frozen=True)
class Plan:
    """The answer for all calls of one key.

    Attributes:
        implementation: what was chosen.
        config: what its target gets as ``config=``, bound in ``run``.
        fallback: a better implementation failed, or a GPU has only the reference.
        run: the target, wrapped where a call needs more than the target.
    """

    implementation: Implementation
    arch: Arch
    config: Any
    fallback: bool
    run: Callable[..., Any]


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
    op: Op, arch: Arch, implementation: Implementation, target: Callable[..., Any], config: Any
) -> Callable[..., Any]:
    """Wrap a target only where a call needs more: config, autocast, capture, versions, checks."""
    run = target
    if implementation.takes_out and config is not None:
        run = functools.partial(target, config=config)
    elif config is not None or op.signature.mutates:
        run = _wrapper(op, config is not None)(target, config)
    if torch._C._is_any_autocast_enabled():
        run = _without_autocast(run)
    if not implementation.capturable:
        run = _refusing_capture(op, implementation, run)
    if policy.current().check:
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
        if faults.capturing():
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
    return codegen.make_wrapper(op.signature, configured, bump_version)


def bump_version(tensor: Tensor) -> None:
    """Tell torch that a tensor was written by code that torch did not see."""
    if not tensor.is_inference():  # which has no version
        torch.autograd.graph.increment_version(tensor)


def _checked(op: Op, arch: Arch, implementation: Implementation, run: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*tensors: Any, **options: Any) -> Any:
        named = op.names(tensors)
        dims, normal = check_call(op.signature, named, options)
        if op.check_data is not None and not faults.capturing():
            op.check_data(**named, **normal)
        results = run(*tensors, **options)
        if "out" not in options:
            check_results(op, Call(op.signature, arch, named, normal, dims), implementation, results)
        return results

    return checked
