"""The documentation holds: its code runs, prints what the page says it prints, and its commands do too.

In README.md and the pages under docs, a fence marked

- ``python`` is run, a page's fences in one namespace from top to bottom; a ``text`` fence right after one is what it
  prints, where ``...`` stands for anything;
- ``console`` shows commands: each line ``$ opmux ...`` is run, and the lines after it are what it prints;
- anything else (``py``, ``bash``, ``toml``, none) is only shown; one with ``title="examples/..."`` shows that file.

A fence that names ``backend-template``, ``opmux-triton`` or ``opmux-vendor`` after its mark is run with these backends
installed, the others with the core alone.
"""

import contextlib
import doctest
import importlib
import importlib.util
import io
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from opmux import tuning
from opmux.callpath.op import OPS
from opmux.cli.app import build_app
from opmux.plugins import loading

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
    before = dict(OPS)
    implementations = {name: op.implementations for name, op in before.items()}
    for name, op in before.items():
        if "opmux.ops." not in f"{op.public.__module__} {op.reference.__module__}":
            del OPS[name]
        op.set_implementations(tuple(i for i in op.implementations if i.distribution == "opmux"))
    try:
        yield
    finally:
        OPS.clear()
        OPS.update(before)
        for name, op in before.items():
            op.set_implementations(implementations[name])


BACKENDS = {
    "backend-template": ("examples/backend-template/src", "opmux_template.plugin", "template", "opmux-template"),
    "opmux-triton": ("packages/plugins-triton/src", "opmux_triton.plugin", "triton", "opmux-triton"),
    "opmux-vendor": ("packages/plugins-vendor/src", "opmux_vendor.plugin", "vendor", "opmux-vendor"),
}
"""What a fence says to have a backend -> its source, its plugin module, the backend's name and its distribution."""


@contextmanager
def installed(fence: Fence, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The backends that the fence names."""
    with contextlib.ExitStack() as stack:
        for source, module, name, distribution in (BACKENDS[n] for n in BACKENDS if n in fence.rest):
            monkeypatch.syspath_prepend(str(ROOT / source))
            plugin = importlib.import_module(module)
            stack.enter_context(loading.temporary_plugin(plugin, name, distribution, "0.1.0"))
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


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No variable of opmux, an empty folder to work in; tuned records that a page brings are gone at its end.

    OPMUX_PLUGINS stays: where a page makes the process's first call, installed plugins must not be loaded for good.
    """
    before = dict(os.environ)
    for name in [*os.environ]:
        if name.startswith("OPMUX_") and name != "OPMUX_PLUGINS":
            del os.environ[name]
    os.environ["COLUMNS"] = "120"
    monkeypatch.chdir(tmp_path)
    yield
    os.environ.clear()
    os.environ.update(before)
    if tuning.report().files:
        tuning.reload()


@pytest.mark.usefixtures("clean_environment")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_page(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = page.relative_to(ROOT).as_posix()
    # A module of its own: Dynamo and inspect look for a function's module by its name.
    module = ModuleType("opmux_docs_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with only_the_core(), torch.random.fork_rng():
        for fence in fences(page.read_text(encoding="utf-8")):
            with installed(fence, monkeypatch):
                if fence.mark == "python":
                    run_python(fence, module.__dict__, where)
                else:
                    run_console(fence, where)
    torch._dynamo.reset()


def test_shown_files_hold_what_is_shown() -> None:
    shown = [
        (title[1], match["body"])
        for page in PAGES
        for match in FENCE.finditer(page.read_text(encoding="utf-8"))
        if (title := re.search(r'title="(examples/[^ "]+)"', match["info"]))
    ]
    assert len(shown) >= 4
    for path, body in shown:
        assert body.strip() in (ROOT / path).read_text(encoding="utf-8"), path


@pytest.mark.parametrize(("page", "least"), [("house.md", 40), ("questions.md", 20)])
def test_the_house_and_its_questions_name_files_that_exist(page: str, least: int) -> None:
    text = (ROOT / "docs" / "maintainers" / page).read_text(encoding="utf-8")
    named = re.findall(r"`([a-z_/-]+(?:\.py|/))`", text)
    assert len(named) >= least
    homes = (ROOT, ROOT / "packages" / "core" / "src" / "opmux")
    assert [name for name in named if not any((home / name).exists() for home in homes)] == []


@pytest.mark.parametrize(("page", "least"), [("house.md", 15), ("questions.md", 15)])
def test_the_house_and_its_questions_name_what_is_in_those_files(page: str, least: int) -> None:
    text = (ROOT / "docs" / "maintainers" / page).read_text(encoding="utf-8")
    named = re.findall(r"`(\w+)`\s+(?:there\s+)?in\s+`([a-z_/]+\.py)`", text)
    assert len(named) >= least
    source = ROOT / "packages" / "core" / "src" / "opmux"
    defined = r"(?m)^ *(?:def|class) {0}\b|^{0}\b[^=\n]*="
    assert [(n, f) for n, f in named if not re.search(defined.format(n), (source / f).read_text("utf-8"))] == []


def test_there_is_something_to_run() -> None:
    runnable = {p.name: len(fences(p.read_text(encoding="utf-8"))) for p in PAGES}
    assert runnable["README.md"] >= 2
    assert sum(runnable.values()) >= 40


@pytest.fixture
def op_table() -> ModuleType:
    """scripts/make_op_table.py as a module."""
    spec = importlib.util.spec_from_file_location("make_op_table", ROOT / "scripts" / "make_op_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_of_ops_is_that_of_the_signatures(
    op_table: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "docs" / "ops" / "index.md").read_text(encoding="utf-8")
    assert op_table.page() == text
    for name, op in OPS.items():
        assert name in text or "opmux.ops." not in op.public.__module__

    (tmp_path / "docs" / "ops").mkdir(parents=True)
    run = [["--check"], [], ["--check"]]
    codes = []
    for words in run:
        monkeypatch.setattr(sys, "argv", ["make_op_table.py", "--root", str(tmp_path), *words])
        codes.append(op_table.main())
    assert codes == [1, 0, 0]
    assert (tmp_path / "docs" / "ops" / "index.md").read_text(encoding="utf-8") == text
    assert "is out of date; run: python scripts/make_op_table.py" in capsys.readouterr().err
