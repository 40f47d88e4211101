"""The public door for plugins: what it offers, what its page says, and that packages beside the core use no other."""

import ast
import importlib
import re
from pathlib import Path

import pytest

import opmux
from opmux import plugin

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/authors/plugin-api.md").read_text()
PUBLIC = re.findall(r"^\| `(opmux[\w.]*)` \|", PAGE, re.MULTILINE)
BESIDE_THE_CORE = [
    folder / "src"
    for folder in sorted((ROOT / "packages").iterdir())
    if (folder / "src").is_dir() and folder.name != "core"
] + [ROOT / "examples/backend-template/src"]


def test_the_page_names_everything_that_the_module_offers():
    tables = PAGE.partition("## opmux.plugin")[2]
    cells = [line.split("|")[1] for line in tables.splitlines() if line.startswith("| `")]
    named = {name for cell in cells for name in re.findall(r"`(\w+)", cell)}
    also = set(re.findall(r"`(Call|Signature)`", tables))
    assert named | also == set(plugin.__all__)


PAGES_FOR_AUTHORS = sorted((ROOT / "docs/authors").glob("*.md")) + sorted((ROOT / "docs/users").glob("*.md"))


@pytest.mark.parametrize("page", PAGES_FOR_AUTHORS, ids=lambda page: page.stem)
def test_the_code_of_pages_imports_what_is_public(page):
    blocks = re.findall(r"^```(?:python|py)\b.*?\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    private = [
        name
        for source in blocks
        if "from opmux" in source or "import opmux" in source
        for _, name in imported(source)
        if name not in PUBLIC and name not in ALSO_PUBLIC
    ]
    assert private == [], "docs/authors/plugin-api.md lists what may be imported"


def imported(source):
    """(line, module or module.name) of every import of opmux in a file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, a.name) for a in node.names if a.name.partition(".")[0] == "opmux")
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "opmux":
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield node.lineno, whole if is_module(whole) else node.module


def is_module(name):
    path = ROOT / "packages/core/src" / name.replace(".", "/")
    return path.with_suffix(".py").is_file() or path.is_dir()


ALSO_PUBLIC = ("opmux.policy", "opmux.rope", "opmux.plugin")
"""Modules that `opmux` itself offers as attributes."""


@pytest.mark.parametrize("folder", BESIDE_THE_CORE, ids=lambda folder: folder.parent.name)
def test_packages_beside_the_core_import_what_is_public(folder):
    files = sorted(folder.rglob("*.py"))
    assert files
    private = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in files
        for line, name in imported(path.read_text())
        if name not in PUBLIC and name not in ALSO_PUBLIC
    ]
    assert private == [], "docs/authors/plugin-api.md lists what may be imported"


RENDERED = re.findall(r"^::: (\S+)$", (ROOT / "docs/api.md").read_text(), re.MULTILINE)


def test_the_page_of_the_api_renders_what_is_public():
    """A public module, or a name that one offers; not the private module that the name is defined in."""
    assert len(RENDERED) > 50
    for path in RENDERED:
        module, _, name = path.rpartition(".")
        offered = (*PUBLIC, *ALSO_PUBLIC)
        assert path in offered or (module in offered and name in importlib.import_module(module).__all__), path


def test_the_page_of_the_api_has_what_users_call():
    listed = re.findall(r"^        - (\w+)$", (ROOT / "docs/api.md").read_text(), re.MULTILINE)
    names = {path.removeprefix("opmux.") for path in RENDERED} | set(listed)
    assert set(opmux.__all__) - names == {"__version__"}
    assert {f"nn.{name}" for name in opmux.nn.__all__} <= names


def test_the_check_sees_private_imports():
    source = "import opmux.running\nfrom opmux.cli import output\nfrom opmux import policy, running\nimport opmux\n"
    assert [name for _, name in imported(source)] == [
        "opmux.running", "opmux.cli.output", "opmux.policy", "opmux.running", "opmux",
    ]  # fmt: skip
