"""Put ops of a later conformance report in the place of an earlier one's, of the same backend, profile and machine.

``python scripts/join_conformance.py WHOLE.json AGAIN.json --out JOINED.json``: for a whole run in which some ops were
cut short or lacked memory, and these ops' run of their own. ``environment`` is the whole run's, with the seconds of
both and the constraints that neither broke.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

Report = dict[str, Any]
SAME = ("arch", "device", "profile", "torch", "opmux", "within")


def joined(whole: Report, again: Report) -> Report:
    """The whole run's report with the ops of the second one.

    Raises:
        ValueError: If the reports are not of the same backend and version, profile and machine, or the second one has
            ops that the first one lacks.
    """
    there, here = ({"backend": r["backend"], "version": r["version"], **r["environment"]} for r in (whole, again))
    for name in ("backend", "version", *SAME):
        if there[name] != here[name]:
            raise ValueError(f"join_conformance: `{name}` expected {there[name]!r} in both reports, got {here[name]!r}")
    new = {op["op"]: op for op in again["ops"]}
    if lacking := new.keys() - {op["op"] for op in whole["ops"]}:
        raise ValueError(f"join_conformance: ops expected in the whole report too, got {', '.join(sorted(lacking))}")
    ops = [new.get(op["op"], op) for op in whole["ops"]]
    counts = _counts(ops)
    of_new = tuple(f"{name}: " for name in new)
    kept = [c for c in whole["environment"]["constraints_not_broken"] if not c.startswith(of_new)]
    unbroken = sorted({*kept, *again["environment"]["constraints_not_broken"]})
    seconds = round(there["seconds"] + here["seconds"], 3)
    return whole | {
        **counts,
        "ops": ops,
        "environment": whole["environment"] | {"seconds": seconds, "constraints_not_broken": unbroken},
    }


def _counts(ops: list[Report]) -> dict[str, int]:
    """How many cases passed, failed, were skipped; a failed refusal counts beside the cases, as in a report."""
    failed = sum(len({f["case"] for f in op["failures"]}) for op in ops)
    skipped = sum(sum(op["skips"].values()) for op in ops)
    return {"passed": sum(op["cases"] for op in ops) - failed - skipped, "failed": failed, "skipped": skipped}


def main() -> int:
    """Write the joined report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("whole", type=Path)
    parser.add_argument("again", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    whole, again = (json.loads(path.read_text()) for path in (given.whole, given.again))
    report = joined(whole, again)
    given.out.write_text(json.dumps(report) + "\n")
    print(f"{report['passed']} passed, {report['failed']} failed, {report['skipped']} skipped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
