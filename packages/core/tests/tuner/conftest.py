"""A backend for the tuner's tests: really installed, so that measuring processes load it too, with planted configs."""

import importlib
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from backends import backends

from opmux.bench.isolated import DONE, Message
from opmux.plugins import loading

PLUGIN = '''
"""Norms whose configs are right, slow, wrong, failing, hanging or fatal, as the environment says."""

import os
import time
from dataclasses import dataclass

import torch

from opmux.plugin import Implementation, hookimpl, report_build

OPMUX_API_VERSION = 1


@dataclass(frozen=True)
class Kind:
    kind: str
    amount: int = 0

    def __post_init__(self):
        if self.kind == "unfit":
            raise ValueError("kind is unfit")


def normed(x, weight, eps, weight_offset):
    return torch.nn.functional.rms_norm(x, weight.shape, weight + weight_offset, eps)


def planted(x, weight, *, eps, weight_offset, config):
    if config.kind == "raising":
        raise RuntimeError("no such instruction")
    if config.kind == "hanging":
        time.sleep(3600)
    if config.kind == "dying":
        os._exit(7)
    if config.kind == "memory":
        raise torch.OutOfMemoryError("tried to allocate 2 GiB")
    if config.kind == "slow":
        time.sleep(0.003)
    if config.kind == "built":
        report_build(1.5)
    found = normed(x, weight, eps, weight_offset)
    if config.kind == "wrong":
        found[-1] = 0
    return found.new_empty(()) if config.kind == "shapeless" else found


def other(x, weight, *, eps, weight_offset):
    time.sleep(0.001)
    return normed(x, weight, eps, weight_offset)


def space(arch, features):
    for kind in os.environ["PLANTED"].split():
        if kind == "breaking":
            raise ZeroDivisionError("no space")
        yield {"kind": kind}


@hookimpl
def opmux_implementations():
    yield Implementation(
        op="rms_norm", target=planted, config=lambda arch, features: Kind("right"), config_schema=Kind, space=space
    )
    yield Implementation(op="rms_norm", name="other", target=other)
'''


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Installs the backend ``planted``; ``planted("wrong dying")`` says which configs its space has."""
    loading.ensure_loaded()  # before there is a plugin to find: this process has it from `backends`
    folder = tmp_path / "installed"
    folder.mkdir()
    (folder / "planted_plugin.py").write_text(textwrap.dedent(PLUGIN))
    info = folder / "opmux_planted-0.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: opmux-planted\nVersion: 0.3\n")
    (info / "entry_points.txt").write_text("[opmux.backends]\nplanted = planted_plugin\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")
    monkeypatch.setenv("OPMUX_PLUGINS", "planted")
    monkeypatch.setenv("PLANTED", "")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    module = importlib.import_module("planted_plugin")

    def configs(kinds: str) -> None:
        monkeypatch.setenv("PLANTED", kinds)

    with backends(planted=module):
        yield configs
    del sys.modules["planted_plugin"]


class InThisProcess:
    """A worker that runs its jobs in this process: quick, for tests of what happens around them."""

    process = SimpleNamespace(kill=lambda: None)

    def __init__(self, function: Any) -> None:
        self.function = function

    def give(self, job: tuple[Any, ...], limit_s: float) -> None:
        self.job = job

    def hear(self) -> Message:
        return Message(DONE, self.function(*self.job))


@pytest.fixture
def inside(planted: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``planted``, whose points are measured in this process."""
    monkeypatch.setattr("opmux.tuner.station.Worker", InThisProcess)
    return planted
