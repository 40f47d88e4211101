"""Plugins that are really installed: a folder on the path, and processes that have it."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

Install = Callable[[str, str], None]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """``install(name, source)``: a plugin of version 0.3 whose module has this source."""

    def install(name: str, source: str) -> None:
        (tmp_path / f"{name}_plugin.py").write_text(textwrap.dedent(source))
        info = tmp_path / f"opmux_{name}-0.3.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: opmux-{name}\nVersion: 0.3\n")
        (info / "entry_points.txt").write_text(f"[opmux.backends]\n{name} = {name}_plugin\n")

    return install


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """``run(program)``: what a fresh process that has these plugins, and no others, prints; the environment by name."""

    def run(program: str, *, command: bool = False, **environment: str) -> subprocess.CompletedProcess[str]:
        ours = ",".join(sorted(path.name.removesuffix("_plugin.py") for path in tmp_path.glob("*_plugin.py")))
        environ = {k: v for k, v in os.environ.items() if not k.startswith("OPMUX_")}
        environ |= {"OPMUX_PLUGINS": ours, **environment}
        environ["PYTHONPATH"] = os.pathsep.join([str(tmp_path), environ.get("PYTHONPATH", "")])
        arguments = ["-m", "opmux", *program.split()] if command else ["-c", textwrap.dedent(program)]
        return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environ, check=False)

    return run
