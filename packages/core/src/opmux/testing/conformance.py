"""The suite as a test module, for any backend: run it through `opmux.testing.plugin`, which describes how."""

from typing import Any

from opmux.testing.suite import (
    check_case,
    check_claims,
    check_constraints,
    check_exceptions,
    check_gradient,
    check_loaded,
)

OPMUX_SUITE = True
"""Marks this module's tests as those of the plugin."""


def test_case(backend: str, op: str, case: str, exceptions: str | None) -> None:
    """One call, checked against the oracle."""
    check_case(backend, op, case, exceptions)


def test_constraints(backend: str, op: str) -> None:
    """Every declared constraint refuses what breaks it."""
    check_constraints(backend, op)


def test_gradient(backend: str, op: str) -> None:
    """The op's backward is the derivative of its reference."""
    check_gradient(backend, op)


def test_claims(backend: str, parameters: list[Any]) -> None:
    """The backend claims something."""
    check_claims(backend, parameters)


def test_loaded(backend: str) -> None:
    """Every record of the backend has loaded."""
    check_loaded(backend)


def test_exceptions(parameters: list[Any], exceptions: str | None) -> None:
    """Known exceptions name cases."""
    check_exceptions(parameters, exceptions)
