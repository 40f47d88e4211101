"""Holding a kernel that a test wrote to the kit."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from opmux.implementation import Implementation
from opmux.loading import API_VERSION, temporary_plugin
from opmux.plugin import hookimpl
from opmux.testing import run_conformance


def plugin_of(*implementations: Implementation) -> Any:
    @hookimpl
    def opmux_implementations() -> Any:
        return implementations

    return SimpleNamespace(OPMUX_API_VERSION=API_VERSION, opmux_implementations=opmux_implementations)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def plugin() -> Callable[..., Any]:
    """A plugin object with the given implementations."""
    return plugin_of


@pytest.fixture
def hold() -> Callable[..., dict[str, Any]]:
    """Register a kernel as backend ``kernel``, run the kit on its op, and return the op's part of the report."""

    def hold_kernel(op: str, target: Callable[..., Any], *, profile: str = "small", **record: Any) -> dict[str, Any]:
        implementation = Implementation(op=op, target=target, **record)
        with temporary_plugin(plugin_of(implementation), "kernel") as loaded:
            assert loaded is not None
            assert len(loaded.implementations) == 1
            report = run_conformance("kernel", [op], profile)
        (of_op,) = report["ops"]
        assert of_op["claimed"] > 0
        return {**of_op, "failed": report["failed"], "passed": report["passed"]}

    return hold_kernel
