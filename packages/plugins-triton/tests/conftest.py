"""What every test of the Triton backend starts from."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

os.environ.pop("TRITON_INTERPRET", None)  # its tests set it for processes of their own
os.environ["OPMUX_PLUGINS"] = "triton"  # whatever else is installed beside the core must not take part

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
pytest.register_assert_rewrite("family_shapes", "gluon_threads")

from kept_calls import SM_90, Device

import opmux
from opmux import log
from opmux.plugins import loading
from opmux_triton import launch, repeats, tensor_maps

loading.ensure_loaded()


def pytest_configure(config: pytest.Config) -> None:
    """The marker of tests that `.ci/memcheck` runs too."""
    config.addinivalue_line("markers", "memcheck: reads or writes so much that compute-sanitizer watches it as well")


@pytest.fixture(autouse=True)
def clean_process() -> Iterator[None]:
    """Leave nothing behind for the next test."""
    torch.manual_seed(0)
    yield
    opmux.policy.reset()
    opmux.quarantine_clear()
    log._announced.clear()


@pytest.fixture
def interpret() -> Callable[[str], None]:
    """Runs a program of these tests under Triton's interpreter, which a process is to be started with."""

    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])

    def run(program: str) -> None:
        done = subprocess.run(
            [sys.executable, HERE / program],
            env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.strip() == "all equal", done.stderr[-3000:]

    return run


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """A GPU that is not there, whose tensors lie on the CPU."""
    tables = (launch._HANDLES, repeats._repeats, repeats._replaced, tensor_maps._maps, tensor_maps._geometries)
    made = Device()
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: -1, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 7, raising=False)
    monkeypatch.setattr(launch, "_build", made.build)
    monkeypatch.setattr(launch, "device_arch", lambda kind, index: SM_90)
    for table in tables:
        table.clear()
    yield made
    for table in tables:
        table.clear()
