"""A report of the conformance suite: the part of an op, and where it was made."""

import platform
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from opmux import __about__
from opmux.arch import arch_of
from opmux.plugins import loading
from opmux.testing import execution
from opmux.testing.case import op_named, probe_of
from opmux.testing.comparison import Errors
from opmux.testing.single import SKIPPED, Outcome, repro, repro_of_op


def report_of(
    backend: str, op: str, outcomes: Sequence[Outcome], refused: Sequence[Outcome], within: str | None = None
) -> dict[str, Any]:
    """The part of an op: its outcomes, those of refusals and gradients among them only where they failed."""
    errors = Errors()
    for outcome in outcomes:
        errors.include(outcome.errors)
    claimed = sum(o.claimed for o in outcomes)
    return {
        "op": op,
        "cases": len(outcomes),
        "claimed": claimed,
        "coverage": claimed / len(outcomes) if outcomes else 0.0,
        "max_error": errors.as_dict(),
        "failures": [
            {"case": o.case, "check": f.check, "message": f.message, "repro": repro(backend, op, o.case, within)}
            | ({"traceback": f.traceback} if f.traceback else {})
            for o in (*outcomes, *refused)
            for f in o.findings
        ],
        "skips": dict(Counter(o.reason for o in outcomes if o.status == SKIPPED)),
        "not_run": _not_run(outcomes),
    }


def _not_run(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """Probes that no claimed case ran, each with the reason given for its last case, which is fitted to the backend."""
    ran = {probe_of(o.case) for o in outcomes if o.claimed and o.status != SKIPPED}
    reasons = {probe_of(o.case): o.reason for o in outcomes if o.status == SKIPPED}
    return {probe: reason for probe, reason in reasons.items() if probe not in ran}


def fail_empty(reports: Sequence[dict[str, Any]], backend: str, profile: str, within: str | None) -> None:
    """Make a run without any claimed case fail."""
    for report in reports:
        reasons = "; ".join(report["skips"]) or "there are none"
        report["failures"].append(
            {
                "case": "",
                "check": "claims",
                "message": f"no case ran: {backend} claims none of {report['cases']} cases ({reasons})",
                "repro": repro_of_op(backend, report["op"], profile, within),
            }
        )


def version_of(backend: str) -> str:
    """The version of a backend's package."""
    for op in execution.ops_of(backend):
        return execution.implementations(op_named(op), backend)[0].version
    return ""


def environment(
    device: torch.device, profile: str, unbroken: Sequence[str], seconds: float, within: str | None
) -> dict[str, Any]:
    """Where a report was made, and what could not be checked there."""
    gpu = device.type == "cuda"
    return {
        "opmux": __about__.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if gpu else "cpu",
        "arch": arch_of(device).name,
        "plugins": {p.name: f"{p.distribution} {p.version}" for p in loading.loaded_plugins()},
        "profile": profile,
        "within": within or "",
        "seconds": round(seconds, 3),
        "not_checked": {} if gpu else {"graph capture": "needs a GPU", "tensors past 2**31 elements": "needs a GPU"},
        "constraints_not_broken": list(unbroken),
    }
