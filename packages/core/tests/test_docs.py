"""The documentation holds: its code runs, prints what the page says it prints, and its commands do too.

In README.md and the pages under docs, a fence marked

- ``python`` is run, a page's fences in one namespace from top to bottom; a ``text`` fence right after one is what it
  prints, where ``...`` stands for anything;
- ``console`` shows commands: each line ``$ opmux ...`` is run, and the lines after it are what it prints;
- anything else (``py``, ``bash``, ``toml``, none) is only shown.

A fence that says ``backend-template`` after its mark is run with the example backend installed, the others with the
core alone.
"""

import contextlib
import doctest
import io
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from opmux import loading
from opmux.cli.app import build_app
from opmux.op import OPS

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
AS_PRINTED = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

# What torch itself warns of in the code that the pages show.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")


@dataclass(frozen=True)
class Fence:
    """A fenced block: its mark, what else its first line says, its text, and what the page says that it prints."""

    mark: str
    rest: str
    body: str
    line: int
    printed: str | None = None


def fences(text: str) -> list[Fence]:
    """The fences of a page that are run."""
    found: list[Fence] = []
    end_of_last = -1
    for match in FENCE.finditer(text):
        mark, _, rest = match["info"].strip().partition(" ")
        if mark == "text" and found and found[-1].mark == "python" and not text[end_of_last : match.start()].strip():
            last = found.pop()
            found.append(Fence(last.mark, last.rest, last.body, last.line, match["body"]))
        else:
            found.append(Fence(mark, rest, match["body"], text.count("\n", 0, match.start()) + 2))
        end_of_last = match.end()
    return [fence for fence in found if fence.mark in ("python", "console")]


def assert_prints(wanted: str, given: str, where: str) -> None:
    """Compare what was printed with what the page says, the amount of blanks aside."""
    assert doctest.OutputChecker().check_output(wanted.strip() + "\n", given.strip() + "\n", AS_PRINTED), (
        f"{where} says it prints\n{wanted}\nand it prints\n{given}"
    )


@contextmanager
def only_the_core() -> Iterator[None]:
    """Whatever is installed, nothing but the core's own implementations; ops that a page defines go at its end."""
    loading.ensure_loaded()
    before = {op.name: op.implementations for op in OPS.values()}
    names = set(OPS)
    for op in OPS.values():
        op.set_implementations(tuple(i for i in op.implementations if i.distribution == "opmux"))
    try:
        yield
    finally:
        for name in set(OPS) - names:
            del OPS[name]
        for name, implementations in before.items():
            OPS[name].set_implementations(implementations)


@contextmanager
def installed(fence: Fence, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The example backend, where the fence says so."""
    if "backend-template" not in fence.rest:
        yield
        return
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "backend-template" / "src"))
    from opmux_template import plugin

    with loading.temporary_plugin(plugin, "template", "opmux-template", "0.1.0"):
        yield


def run_python(fence: Fence, namespace: dict[str, Any], where: str) -> None:
    """Run a fence; hold what it prints to the page, where the page says it."""
    printed = io.StringIO()
    # Lines are counted from the top of the page, so that a traceback names the page's own.
    code = compile("\n" * (fence.line - 1) + fence.body, where, "exec")
    with contextlib.redirect_stdout(printed):
        exec(code, namespace)
    if fence.printed is not None:
        assert_prints(fence.printed, printed.getvalue(), f"{where}:{fence.line}")


def run_console(fence: Fence, where: str) -> None:
    """Run each ``$ opmux ...`` of a fence; other commands are only shown."""
    for part in re.split(r"^\$ ", fence.body, flags=re.MULTILINE)[1:]:
        command, _, wanted = part.partition("\n")
        words = shlex.split(command)
        if words[0] == "opmux":
            result = CliRunner().invoke(build_app(), words[1:], prog_name="opmux")
            assert_prints(wanted, result.output, f"{where}: $ {command}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_page(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [*os.environ]:
        if name.startswith("OPMUX_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)
    where = page.relative_to(ROOT).as_posix()
    # A module of its own: what looks for the names of a function's module finds them.
    namespace: dict[str, Any] = {"__name__": "opmux_docs_page"}
    monkeypatch.setitem(sys.modules, "opmux_docs_page", type(sys)("opmux_docs_page"))
    sys.modules["opmux_docs_page"].__dict__.update(namespace)
    with only_the_core(), torch.random.fork_rng():
        for fence in fences(page.read_text(encoding="utf-8")):
            with installed(fence, monkeypatch):
                if fence.mark == "python":
                    run_python(fence, sys.modules["opmux_docs_page"].__dict__, where)
                else:
                    run_console(fence, where)
    torch._dynamo.reset()


def test_there_is_something_to_run() -> None:
    runnable = {p.name: len(fences(p.read_text(encoding="utf-8"))) for p in PAGES}
    assert runnable["README.md"] >= 2
    assert sum(runnable.values()) >= 40
