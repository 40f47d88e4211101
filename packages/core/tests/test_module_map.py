"""The map of the source: rooms in order, arrows as the imports are, every module with its role."""

import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """scripts/make_module_map.py."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import make_module_map

    return make_module_map


def test_rooms_stand_above_those_that_import_them(module: ModuleType) -> None:
    graph = {"cli": {"words", "plans"}, "plans": {"words"}, "words": set()}
    assert module.order(graph) == ["words", "plans", "cli"]
    assert [*module.arrows(graph)][2:] == [
        "| `words` | none | plans, cli |",
        "| `plans` | words | cli |",
        "| `cli` | words, plans | none |",
        "",
        "No room imports from one below it.",
    ]


def test_an_arrow_against_the_order_is_named(module: ModuleType) -> None:
    graph = {"a": {"b"}, "b": {"a"}, "c": {"a"}}
    *_, last = module.arrows(graph)
    assert last in ("Against this order: `a` imports from `b`.", "Against this order: `b` imports from `a`.")


def test_imports_of_every_form_are_read(module: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    core = tmp_path / "packages/core/src/opmux"
    (core / "room").mkdir(parents=True)
    (core / "errors.py").write_text('"""Errors."""\n', encoding="utf-8")
    (core / "arch.py").write_text('"""Archs."""\n', encoding="utf-8")
    (core / "log.py").write_text('"""The log."""\n', encoding="utf-8")
    (core / "room" / "__init__.py").write_text("", encoding="utf-8")
    lines = [
        "from opmux import errors",
        "from opmux.arch import Arch",
        "import opmux.log",
        "from opmux.room import one",
    ]
    (core / "room" / "one.py").write_text("\n".join([*lines, "import os"]), encoding="utf-8")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    assert module.rooms()["room"] == {"errors", "arch", "log"}


def test_every_module_of_the_core_has_its_role_on_the_page(module: ModuleType) -> None:
    page = module.page()
    for path in module.modules(ROOT / module.CORE):
        assert module.said(path), f"{path} has no docstring"
        assert path.name == "__init__.py" or f"| `{path.name}` | {module.said(path)} |" in page


def test_the_house_lists_the_rooms_in_the_order_of_the_map(module: ModuleType) -> None:
    house = (ROOT / "docs/maintainers/house.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \|", house.partition("## The rooms")[2].partition("## The way")[0], re.MULTILINE)
    listed = [name.rstrip("/").removesuffix(".py") for row in rows for name in re.findall(r"`([\w./]+)`", row)]
    assert listed == module.order(module.rooms())
