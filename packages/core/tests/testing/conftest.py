"""Holding a kernel that a test wrote to the kit."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from backends import plugin

from opmux.declared.implementation import Implementation
from opmux.plugins.loading import temporary_plugin
from opmux.testing import run_conformance


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors: threads only get in each other's way."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def hold() -> Callable[..., dict[str, Any]]:
    """Register a kernel as backend ``kernel``, run the kit on its op, and return the op's part of the report."""

    def hold_kernel(op: str, target: Callable[..., Any], *, profile: str = "small", **record: Any) -> dict[str, Any]:
        # The kernels here are written for the CPU; on a machine with a GPU the kit would take them there.
        implementation = Implementation(op=op, target=target, **{"archs": ("cpu",), **record})
        with temporary_plugin(plugin(implementation), "kernel") as loaded:
            assert loaded is not None
            assert len(loaded.implementations) == 1
            report = run_conformance("kernel", [op], profile)
        (of_op,) = report["ops"]
        assert of_op["claimed"] > 0
        return {**of_op, "failed": report["failed"], "passed": report["passed"]}

    return hold_kernel
