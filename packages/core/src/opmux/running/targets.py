"""Targets: imported when first chosen, given their config, wrapped only where something must be done around them."""

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from opmux import policy
from opmux.arch import Arch
from opmux.callpath import codegen
from opmux.callpath.op import Op
from opmux.declared.call import Call
from opmux.declared.configs import make_config
from opmux.declared.implementation import Implementation
from opmux.errors import BackendFault, CaptureRefused
from opmux.planning import resolver
from opmux.planning.report import describe_call
from opmux.running import faults
from opmux.signatures.validation import check_call, describe

FUNCTIONAL_BACKEND, FUNCTIONAL = "opmux", "functional"
"""The backend and name under which an in-place op runs the functional one, dispatched, and copies."""


@dataclass(frozen=True)
class Planned:
    """What a plan table remembers beside the callable: the choice, its config, and the callable that takes ``out=``."""

    implementation: Implementation
    arch: Arch
    config: Any
    fallback: bool
    with_out: Callable[..., Any] | None


def load_target(op: Op, implementation: Implementation, forced: str | None = None) -> Callable[..., Any]:
    """Import the target; of the functional form of an in-place op, make it.

    Raises:
        Exception: whatever the import raises.
    """
    target = implementation.target
    if callable(target):
        if implementation.name == FUNCTIONAL and op.in_place_of is not None:
            inner = forced if forced is not None and not resolver.is_named(implementation, forced) else None
            made: Callable[..., Any] = target(inner)
            return made
        return target
    module, _, function = target.partition(":")
    loaded: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return loaded


def config_of(op: Op, chosen: Implementation, call: Call, resolution: resolver.Resolution) -> tuple[Any, str]:
    """The config that the target will get, and where it came from: ``tuned``, ``heuristic`` or ``default``.

    A target whose record declares no config takes none, so a tuned record's is then not used.

    Raises:
        ValueError: where the config does not fit the record's ``config_schema``.
        Exception: whatever the config function raises.
    """
    if chosen.config is None:
        return None, "default"
    tuned = resolution.tuned.of(chosen.full_name) if resolution.tuned is not None else None
    if tuned is not None and tuned.config is not None:
        return make_config(chosen, dict(tuned.config)), "tuned"
    function: Any = chosen.config
    if isinstance(function, str):
        module, _, name = function.partition(":")
        function = getattr(importlib.import_module(module), name)
    labels = [rule.feature(op.signature).label for rule in chosen.features]
    return make_config(chosen, function(call.arch, {label: call.features[label] for label in labels})), "heuristic"


def config_fault(error: Exception) -> str:
    """What is told of an implementation whose config cannot be had."""
    return f"its config function raised {type(error).__name__}: {error}"


def make_run(op: Op, implementation: Implementation, target: Callable[..., Any], config: Any) -> Callable[..., Any]:
    """Wrap a target only where something must be done around it: config, autocast, capture, versions, checks."""
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
        run = _checked(op, implementation, run)
    return run


def _without_autocast(run: Callable[..., Any]) -> Callable[..., Any]:
    """For plans made under autocast. Keys and guards tell them from others, so the others pay nothing."""
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
                f"  call:      {describe_call(op, tensors, options)}\n"
                f"  try:       a backend that can (see opmux.explain), or capture around this call"
            )
        return run(*tensors, **options)

    return refusing_capture


@functools.cache
def _wrapper(op: Op, configured: bool) -> Callable[..., Any]:
    """Written out for the op: gathering arguments and passing them on would cost 0.5 us a call."""
    namespace = {"_bump": bump_version}
    return codegen.compile_function("wrapper", codegen.wrapper_source(op.signature, configured), namespace, shown=False)


def bump_version(tensor: Tensor) -> None:
    """Say that a tensor was written to, by something that torch did not see."""
    if not tensor.is_inference():  # which has no version
        torch.autograd.graph.increment_version(tensor)


def _checked(op: Op, implementation: Implementation, run: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*tensors: Any, **options: Any) -> Any:
        named = op.names(tensors)
        dims, normal = check_call(op.signature, named, options)
        if op.check_data is not None and not faults.capturing():
            op.check_data(**op.names(tuple(tensors)), **normal)
        results = run(*tensors, **options)
        if not op.signature.mutates and "out" not in options:
            check_results(op, implementation, results, named, dims, normal)
        return results

    return checked


def shares_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors lie in one storage."""
    first, second = a.untyped_storage(), b.untyped_storage()
    if first._cdata == second._cdata:
        return True
    # Storage that came in by another library may have an object of its own; meta and fake storage has no address.
    return first.device == second.device and first.device.type != "meta" and first.data_ptr() == second.data_ptr()


def check_results(
    op: Op,
    implementation: Implementation,
    results: Any,
    named: Mapping[str, Any],
    dims: Mapping[str, Any],
    options: Mapping[str, Any],
) -> None:
    """Hold what a target returned to the signature.

    Raises:
        BackendFault: where the number, a type, a shape, a dtype or a device is not the op's.
    """
    outputs = op.signature.outputs
    given = results if isinstance(results, tuple) else (results,)
    if len(outputs) == 1 and isinstance(results, tuple) and len(results) == 1:
        given = (results,)  # a tuple of one is not the tensor that the op returns
    shapes, dtypes = op.signature.output_shapes(dims, options), op.signature.output_dtypes(named, options)
    device = named[op.signature.tensors[0].name].device
    who = f"{op.name}: {implementation.full_name} ({implementation.distribution} {implementation.version})"
    if len(given) != len(outputs):
        raise BackendFault(f"{who} returned {len(given)} results, expected {len(outputs)}; report it to its authors")
    for output, value, shape, dtype in zip(outputs, given, shapes, dtypes, strict=True):
        good = f"{str(dtype).removeprefix('torch.')}{list(shape)} on {device}"
        if not isinstance(value, Tensor) or (tuple(value.shape), value.dtype, value.device) != (shape, dtype, device):
            where = f" on {value.device}" if isinstance(value, Tensor) else ""
            raise BackendFault(
                f"{who} returned {describe(value)}{where} as `{output.name}`, expected {good}; report it to its authors"
            )
        wanted = output.strides(shape, options) if output.strides is not None and shape != (0,) else None
        if wanted is None and not value.is_contiguous():
            raise BackendFault(
                f"{who} returned `{output.name}` with strides {list(value.stride())}, expected a contiguous tensor; "
                "report it to its authors"
            )
        source = next((n for n, t in named.items() if t is not None and t.numel() and shares_memory(value, t)), None)
        if source is not None:
            raise BackendFault(
                f"{who} returned `{output.name}` in the memory of `{source}`, expected a tensor of its own; "
                "report it to its authors"
            )
