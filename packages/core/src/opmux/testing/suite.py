"""The suite as pytest tests: one for each case, and others for constraints, the claim, loading and exceptions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from opmux.testing import execution, refusals
from opmux.testing.case import op_named, parse_case
from opmux.testing.cases import gradient_case
from opmux.testing.exceptions import exemption_of, read_exceptions, unused
from opmux.testing.fitted import cases_for
from opmux.testing.profiles import profile_named
from opmux.testing.single import FAILED, SKIPPED, failure_text, run_one


def case_parameters(backend: str, ops: Sequence[str] | None, profile: str) -> list[Any]:
    """``(op, case id)`` of every case, as pytest parameters.

    Raises:
        UnknownBackend: If no plugin registers the backend.
        InvalidArgument: If there is no such op or profile, or the profile needs a GPU and there is none.
    """
    implemented = execution.ops_of(backend)  # loads the plugins, whose ops may be among the names
    names = implemented if ops is None else [op_named(name).name for name in ops]
    device = execution.device_for(backend)
    if profile_named(profile).needs_gpu and device.type != "cuda":
        pytest.fail(f"profile {profile} needs a GPU, and {backend} has none here", pytrace=False)
    cases = [(op, case.id) for op in names for case in cases_for(backend, op, profile, device)]
    return [pytest.param(op, case, id=f"{op}-{case}") for op, case in cases]


def check_case(backend: str, op: str, case: str, exceptions: str | Path | None = None) -> None:
    """Run one case as a test: fails with the findings, or skips with the declared reason."""
    outcome = run_one(backend, parse_case(op, case), execution.device_for(backend))
    exemption = exemption_of(read_exceptions(exceptions) if exceptions else (), op, case)
    if outcome.status == SKIPPED:
        pytest.skip(outcome.reason)
    if outcome.status == FAILED and exemption is not None:
        pytest.xfail(exemption.reason)
    if outcome.status == FAILED:
        pytest.fail(failure_text(backend, op, outcome), pytrace=False)
    if exemption is not None:
        pytest.fail(
            f"{op} on {backend} passes case {case}, which {exemption.where} excepts ({exemption.reason}): "
            "remove the line",
            pytrace=False,
        )


def check_constraints(backend: str, op: str) -> None:
    """Every constraint that an implementation of the op declares refuses a call that breaks it."""
    findings, _ = refusals.check_constraints(backend, op_named(op), execution.device_for(backend))
    if findings:
        lines = [f"{op} on {backend}: declared refusals"] + [f"  {name}: {f.message}" for name, f in findings]
        pytest.fail("\n".join(lines), pytrace=False)


def check_gradient(backend: str, op: str) -> None:
    """The op's backward is the derivative of its reference."""
    case = gradient_case(op)
    if case is not None:
        outcome = run_one(backend, case, execution.device_for(backend))
        if outcome.status == FAILED:
            pytest.fail(failure_text(backend, op, outcome), pytrace=False)


def check_claims(backend: str, parameters: Sequence[Any]) -> None:
    """At least one case is claimed: a suite of skips proves nothing."""
    device = execution.device_for(backend)
    reasons: dict[str, int] = {}
    for parameter in parameters:
        op, case = parameter.values
        outcome = run_one(backend, parse_case(op, case), device)
        if outcome.claimed:
            return
        reasons[outcome.reason] = reasons.get(outcome.reason, 0) + 1
    said = "\n".join(f"  {count} x {reason}" for reason, count in reasons.items())
    pytest.fail(f"{backend} claims none of {len(parameters)} cases\n{said}", pytrace=False)


def check_loaded(backend: str) -> None:
    """Every record of the backend has loaded; what did not load cannot be checked."""
    execution.ops_of(backend)
    reasons = execution.unloaded_parts(backend)
    if reasons:
        lines = [f"parts of {backend} did not load"] + [f"  {reason}" for reason in reasons]
        pytest.fail("\n".join(lines), pytrace=False)


def check_exceptions(parameters: Sequence[Any], exceptions: str | Path | None) -> None:
    """Every known exception names a case."""
    named = [tuple(parameter.values) for parameter in parameters]
    lost = unused(read_exceptions(exceptions) if exceptions else (), named)
    if lost:
        lines = [f"  {e.where}: {e.op} | {e.case}" for e in lost]
        pytest.fail("known exceptions that name no case: remove them\n" + "\n".join(lines), pytrace=False)


def conformance_suite(
    backend: str, ops: Sequence[str] | None = None, profile: str = "small", exceptions: str | Path | None = None
) -> type:
    """Make a test class that checks a backend against the references.

    Write ``TestMyBackend = conformance_suite("mybackend")`` in a test module; the name must begin with ``Test``.

    Args:
        backend: the backend's name, or an implementation's full name.
        ops: names of ops; None takes every op that the backend implements.
        profile: the name of a profile (`opmux.testing.PROFILES`).
        exceptions: a file of known exceptions (`opmux.testing.exceptions`) with a reason for each.

    Returns:
        The class.

    Raises:
        UnknownBackend: If no plugin registers the backend.
        InvalidArgument: If there is no such op or profile.
    """
    parameters = case_parameters(backend, ops, profile)
    names = list(dict.fromkeys(parameter.values[0] for parameter in parameters))

    class Conformance:
        """The conformance suite of one backend."""

        @pytest.mark.parametrize(("op", "case"), parameters)
        def test_case(self, op: str, case: str) -> None:
            """One call, checked against the oracle."""
            check_case(backend, op, case, exceptions)

        @pytest.mark.parametrize("op", names)
        def test_constraints(self, op: str) -> None:
            """Every declared constraint refuses what breaks it."""
            check_constraints(backend, op)

        @pytest.mark.parametrize("op", names)
        def test_gradient(self, op: str) -> None:
            """The op's backward is the derivative of its reference."""
            check_gradient(backend, op)

        def test_claims(self) -> None:
            """The backend claims something."""
            check_claims(backend, parameters)

        def test_loaded(self) -> None:
            """Every record of the backend has loaded."""
            check_loaded(backend)

        def test_exceptions(self) -> None:
            """Known exceptions name cases."""
            check_exceptions(parameters, exceptions)

    Conformance.__doc__ = f"The conformance suite of {backend}, profile {profile}."
    Conformance.__qualname__ = "Conformance"
    return Conformance
