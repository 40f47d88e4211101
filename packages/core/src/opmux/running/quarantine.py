"""The quarantine: which implementations failed, when and why, and for which calls they are no longer chosen."""

import datetime
import logging
import threading
from dataclasses import dataclass
from typing import Any

from opmux.callpath.op import drop_all_plans
from opmux.declared.implementation import Implementation
from opmux.log import announce_once, forget

ARCH, PLAN, KERNEL = "arch", "plan", "kernel"
PLANS_BEFORE_ARCH = 16
"""Once this many plans of one implementation have faults, the next fault counts for the whole arch."""


@dataclass(frozen=True)
class Quarantined:
    """An implementation that is no longer chosen.

    Attributes:
        scope: ``arch``: for every call on that arch (import and build faults); ``plan``: for the calls of one plan;
            ``kernel``: the same, since that plan's kernel is missing, which counts nothing against other plans.
        key: the plan's key, where the scope is not the arch.
    """

    op: str
    name: str
    distribution: str
    version: str
    arch: str
    scope: str
    reason: str
    when: datetime.datetime
    key: Any = None


_lock = threading.Lock()
_records: dict[tuple[str, str, str, Any], Quarantined] = {}


def quarantine(op: str, implementation: Implementation, arch: str, scope: str, reason: str, key: Any = None) -> None:
    """Record a fault and announce it once, with its reason."""
    with _lock:  # one hold: threads that fail together count each other's plans
        faulty = (op, implementation.full_name, arch)
        plans = sum((r.op, r.name, r.arch) == faulty and r.scope != KERNEL for r in _records.values())
        if scope == PLAN and plans >= PLANS_BEFORE_ARCH:
            scope = ARCH
        key = None if scope == ARCH else key
        _records[op, implementation.full_name, arch, key] = Quarantined(
            op,
            implementation.full_name,
            implementation.distribution,
            implementation.version,
            arch,
            scope,
            reason,
            datetime.datetime.now(datetime.UTC),
            key,
        )
    announce_once(
        ("quarantined", op, implementation.full_name, arch, key),
        logging.WARNING,
        "%s: %s (%s %s) is quarantined on %s%s: %s; the next choice runs",
        op,
        implementation.full_name,
        implementation.distribution,
        implementation.version,
        arch,
        "" if scope == ARCH else " for calls like this one",
        reason,
    )


def quarantined_for(op: str, arch: str, key: Any) -> dict[str, str]:
    """Full name -> reason, for the implementations that must not be chosen for this op, arch and key."""
    if not _records:
        return {}
    with _lock:
        records = list(_records.values())
    return {r.name: r.reason for r in records if r.op == op and r.arch == arch and (r.scope == ARCH or r.key == key)}


def quarantined() -> tuple[Quarantined, ...]:
    """Everything in quarantine, oldest first."""
    with _lock:
        return tuple(_records.values())


def forget_backend(backend: str) -> None:
    """Drop the records of a backend that was unloaded."""
    with _lock:
        for record_key, record in list(_records.items()):
            if record.name.partition(":")[0] == backend:
                del _records[record_key]
                forget(("quarantined", *record_key))


def quarantine_clear() -> None:
    """Clear the quarantine: everything may be tried again."""
    with _lock:
        for op, name, arch, key in _records:
            forget(("quarantined", op, name, arch, key))
        _records.clear()
    drop_all_plans()
