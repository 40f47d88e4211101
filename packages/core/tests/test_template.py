"""The template of a backend: what its README tells to install is what its commands need."""

import re
import tomllib
from pathlib import Path

TEMPLATE = Path(__file__).parents[3] / "examples" / "backend-template"


def test_the_install_line_brings_what_the_commands_need():
    readme = (TEMPLATE / "README.md").read_text()
    project = tomllib.loads((TEMPLATE / "pyproject.toml").read_text())["project"]
    commands = re.findall(r"(?m)^    (\w+)", readme)
    assert commands == ["pip", "opmux", "pytest"]
    (extra,) = re.findall(r"pip install -e \"\.\[(\w+)\]\"", readme)
    (brought,) = re.findall(r"opmux\[([\w,]+)\]", " ".join(project["optional-dependencies"][extra]))
    # `opmux` on the command line needs typer and rich, the suite needs pytest and hypothesis.
    assert {"cli", "testing"} <= set(brought.split(","))
