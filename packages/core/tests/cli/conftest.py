"""The command line in this process, and plugins that are there for one test."""

import os
import sys
from collections.abc import Callable
from types import ModuleType

import pytest
from cli.samples import GOOD_OP, result
from typer.testing import CliRunner, Result

from opmux.cli.app import build_app
from opmux.plugin import Implementation, Priority, hookimpl
from opmux.plugins.loading import ensure_loaded

OpmuxCli = Callable[..., Result]


@pytest.fixture
def opmux_cli(monkeypatch: pytest.MonkeyPatch) -> OpmuxCli:
    """``opmux_cli("explain", "rms_norm", ...)``: runs a command in an environment without OPMUX_ variables."""
    ensure_loaded()  # as the environment says it, and before that is taken away
    for name in [*os.environ]:
        if name.startswith("OPMUX_") or name == "COLUMNS":
            monkeypatch.delenv(name)

    def run(*words: str) -> Result:
        return CliRunner().invoke(build_app(), list(words), prog_name="opmux")

    return run


class RowsPlugin:
    """A backend with one implementation of rms_norm on the CPU, and one elsewhere."""

    OPMUX_API_VERSION = 1

    @hookimpl
    def opmux_implementations(self):
        yield Implementation(op="rms_norm", target=rms_norm, archs=("cpu",), priority=Priority.VENDOR)
        yield Implementation(op="silu_mul", target="nowhere:silu_mul", archs=("sm_80+", "gfx9*"))


def rms_norm(x, weight, *, eps, weight_offset):
    scale = (x.float().pow(2).mean(-1, keepdim=True) + eps).rsqrt()
    return (x.float() * scale * (weight.float() + weight_offset)).to(x.dtype)


@pytest.fixture
def rows_plugin() -> RowsPlugin:
    return RowsPlugin()


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A stand-in for `opmux.testing.runner`: ``answer`` is what it gives or raises, ``asked`` how it was called."""
    made = ModuleType("opmux.testing.runner")
    made.answer, made.asked = result(GOOD_OP), []

    def run_conformance(
        backend, ops=None, profile="default", progress=None, jobs=None, limit_s=None, within=None, total_s=None
    ):
        made.asked.append((backend, ops, profile, jobs, limit_s, within, total_s))
        if isinstance(made.answer, Exception):
            raise made.answer
        progress("rms_norm", 1, 2)
        return made.answer

    made.run_conformance = run_conformance
    package = ModuleType("opmux.testing")
    package.runner = made
    monkeypatch.setitem(sys.modules, "opmux.testing", package)
    monkeypatch.setitem(sys.modules, "opmux.testing.runner", made)
    return made
