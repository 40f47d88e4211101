"""The conformance kit (extra ``testing``): checks a backend against the references of the ops.

`run_conformance` returns a report, `conformance_suite` makes a test class for a backend's own tests, and
``pytest -p opmux.testing.plugin --pyargs opmux.testing.conformance --backend X`` runs the same cases.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opmux.testing.bounds import derives
    from opmux.testing.case import Case, all_options, parse_case
    from opmux.testing.cases import cases_of
    from opmux.testing.making import makes
    from opmux.testing.memory import view_strides
    from opmux.testing.oracle import rounds
    from opmux.testing.profiles import PROFILES, Profile
    from opmux.testing.runner import run_conformance
    from opmux.testing.single import Outcome, run_case
    from opmux.testing.suite import conformance_suite

_WHERE = {
    "Case": "case",
    "Outcome": "single",
    "PROFILES": "profiles",
    "Profile": "profiles",
    "all_options": "case",
    "cases_of": "cases",
    "conformance_suite": "suite",
    "derives": "bounds",
    "makes": "making",
    "parse_case": "case",
    "rounds": "oracle",
    "run_case": "single",
    "run_conformance": "runner",
    "view_strides": "memory",
}

__all__ = [
    "PROFILES",
    "Case",
    "Outcome",
    "Profile",
    "all_options",
    "cases_of",
    "conformance_suite",
    "derives",
    "makes",
    "parse_case",
    "rounds",
    "run_case",
    "run_conformance",
    "view_strides",
]


def __getattr__(name: str) -> Any:
    """Import on first use: a report does not need pytest, and an input maker does not need hypothesis."""
    if name in _WHERE:
        return getattr(importlib.import_module(f"opmux.testing.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'opmux.testing' has no attribute {name!r}")
