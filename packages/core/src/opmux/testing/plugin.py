"""The pytest plugin of the suite: ``pytest -p opmux.testing.plugin --pyargs opmux.testing.conformance --backend X``.

It is loaded by name, never through an entry point, which would import torch into every pytest run. Assertion rewriting
is not needed: a failing case describes what is wrong.
"""

from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the suite."""
    group = parser.getgroup("opmux", "opmux conformance")
    group.addoption("--backend", help="the backend to check against the references")
    group.addoption("--op", action="append", help="an op (may be repeated; default: all that the backend implements)")
    group.addoption(
        "--profile",
        default="small",
        help="sizes of the cases: small, default, model, interpreter, interpreter-some, emulator, emulator-some, large",
    )
    group.addoption("--exceptions", help="a file of known exceptions: op | case | reason")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Generate a test for each case of the requested backend."""
    if metafunc.module.__name__.rpartition(".")[2] != "conformance" or not hasattr(metafunc.module, "OPMUX_SUITE"):
        return
    from opmux.errors import OpmuxError
    from opmux.testing.suite import case_parameters

    config = metafunc.config
    backend = config.getoption("--backend")
    if not backend:
        raise pytest.UsageError("opmux.testing.conformance needs --backend NAME; see `opmux backends`")
    try:
        parameters = case_parameters(backend, config.getoption("--op"), config.getoption("--profile"))
    except OpmuxError as error:
        raise pytest.UsageError(str(error)) from None
    if {"op", "case"} <= set(metafunc.fixturenames):
        metafunc.parametrize(("op", "case"), parameters)
    elif "op" in metafunc.fixturenames:
        metafunc.parametrize("op", list(dict.fromkeys(p.values[0] for p in parameters)))
    elif "parameters" in metafunc.fixturenames:
        metafunc.parametrize("parameters", [parameters], ids=["all"])


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Any:
    """The requested backend."""
    return request.config.getoption("--backend")


@pytest.fixture
def exceptions(request: pytest.FixtureRequest) -> Any:
    """The file of known exceptions, or None."""
    return request.config.getoption("--exceptions")
