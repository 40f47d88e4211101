"""Running a call on one backend: whether it claims the call, and the call itself with that backend forced."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from opmux.arch import arch_of
from opmux.callpath.op import OPS, Op
from opmux.declared.implementation import Implementation
from opmux.errors import UnknownBackend
from opmux.planning import resolver
from opmux.planning.plan import circumstances
from opmux.plugins import loading
from opmux.running.attempt import attempt_of
from opmux.testing.threads import all_threads


@dataclass(frozen=True)
class Claim:
    """Whether a backend claims a call.

    Attributes:
        implementation: the one that would run, or None.
        reason: why none would.
        rejected: the reason of each of the backend's implementations that declined, by name.
    """

    implementation: Implementation | None
    reason: str = ""
    rejected: Mapping[str, str] | None = None


def unasked() -> Claim:
    """A claim before the resolver is asked."""
    return Claim(None)


def implementations(op: Op, backend: str) -> list[Implementation]:
    """The implementations of an op that a backend's name, or an implementation's full name, refers to."""
    return [i for i in op.implementations if i.is_named(backend)]


def ops_of(backend: str) -> list[str]:
    """The ops that a backend implements, in order of name.

    Raises:
        UnknownBackend: If no plugin registers it.
    """
    loading.ensure_loaded()
    found = sorted(op.name for op in OPS.values() if implementations(op, backend))
    if not found:
        failed = [f for f in loading.failed_plugins() if f.name == backend.partition(":")[0]]
        known = ", ".join(sorted({i.backend for op in OPS.values() for i in op.implementations}))
        why = f"its plugin failed to load: {failed[0].reason}" if failed else "no installed plugin registers it"
        raise UnknownBackend(
            f"conformance: `backend` expected one of {known}, got {backend!r}: {why}; see `opmux backends`"
        )
    return found


def unloaded_parts(backend: str) -> list[str]:
    """Why parts of the backend's plugin did not load: mostly records that were refused."""
    return [f.reason for f in loading.failed_plugins() if f.name == backend.partition(":")[0]]


def device_for(backend: str) -> torch.device:
    """The device on which a backend is tested: the GPU if there is one whose arch it names, else the CPU."""
    if torch.cuda.is_available():
        device = torch.device("cuda", torch.cuda.current_device())
        arch = arch_of(device)
        if any(
            arch.matches(pattern) for op in OPS.values() for i in implementations(op, backend) for pattern in i.archs
        ):
            return device
    return torch.device("cpu")


def claim(op: Op, backend: str, tensors: Mapping[str, Tensor | None], options: Mapping[str, Any]) -> Claim:
    """Ask the resolver whether the backend claims a call, and if not, why."""
    attempt = attempt_of(op, op.state, tuple(tensors.values()), options)
    around = replace(circumstances(attempt), forced=backend)
    resolution = resolver.resolve(attempt.call, op.implementations, around)
    if resolution.accepted:
        return Claim(resolution.accepted[0].implementation)
    asked = {v.name: v.reason for v in resolution.verdicts if v.implementation.is_named(backend)}
    if not asked:
        return Claim(None, "the backend does not implement this op", {})
    several = len(asked) > 1
    reason = "; ".join(f"{name}: {why}" if several else why for name, why in asked.items())
    return Claim(None, reason, asked)


def call(
    op: Op, backend: str, tensors: Mapping[str, Tensor | None], options: Mapping[str, Any], **extra: Any
) -> tuple[Tensor, ...]:
    """Call the op with the backend forced; returns the results as a tuple, empty for a mutating op."""
    with all_threads():
        found = op.public(*tensors.values(), **options, backend=backend, **extra)
    if found is None:
        return ()
    return tuple(found) if isinstance(found, (tuple, list)) else (found,)
