"""Makes docs/maintainers/modules.md, the map of the source: who imports whom, and what each module is for.

Rooms and arrows are read from the imports, the words are the first paragraphs of the docstrings.
`python scripts/make_module_map.py` writes the page; with `--check` it writes nothing and exits 1 where the page is not
what it would write.
"""

import argparse
import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = Path("docs/maintainers/modules.md")
CORE = Path("packages/core/src/opmux")

HEADER = """\
<!-- Made by scripts/make_module_map.py from the imports and docstrings: do not edit. -->

# Every module

The map behind [the house](house.md): which room of the core imports which, and every module of every package with what
its docstring says it is for. `nox -s generate` writes this page, and the session `docs` compares it with the source.

## Who imports whom

A room is a folder of `packages/core/src/opmux`, or a module beside the folders. Rooms stand in the order of what they
rest on: each imports only from rooms above it, and the line below the table names any exception. `opmux.__init__`,
which gives users everything, is left out.
"""


def modules(source: Path) -> Iterator[Path]:
    """The modules of a package; the ones that only state a version or start the command line are no rooms."""
    yield from (p for p in sorted(source.rglob("*.py")) if p.name not in ("__about__.py", "__main__.py"))


def room_of(path: Path) -> str:
    """The folder of a module in the core, or the module's own name."""
    parts = path.relative_to(CORE).parts
    return parts[0] if len(parts) > 1 else Path(parts[0]).stem


def imported(path: Path) -> Iterator[str]:
    """The rooms that a module of the core imports from."""
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module == "opmux":
            names = [f"opmux.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        yield from (name.split(".")[1] for name in names if name.startswith("opmux."))


def rooms() -> dict[str, set[str]]:
    """Each room of the core and the rooms it imports from."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in modules(ROOT / CORE):
        room = room_of(path.relative_to(ROOT))
        if room != "__init__":
            found[room] |= {*imported(path.relative_to(ROOT))} - {room}
    return {room: {i for i in imports if i in found} for room, imports in found.items()}


def order(graph: dict[str, set[str]]) -> list[str]:
    """Rooms in the order of what they rest on; those that rest on each other begin with the most imported."""

    def below(room: str) -> set[str]:
        seen, todo = {room}, [room]
        while todo:
            for other in graph[todo.pop()] - seen:
                seen.add(other)
                todo.append(other)
        return seen

    reached = {room: below(room) for room in graph}

    def surplus(room: str) -> int:
        loop = {other for other in reached[room] if room in reached[other]}
        return len(graph[room] & loop) - sum(room in graph[other] for other in loop)

    return sorted(graph, key=lambda room: (len(reached[room]), surplus(room), room))


def arrows(graph: dict[str, set[str]]) -> Iterator[str]:
    """The table of rooms, and the pairs that import from each other."""
    ordered = order(graph)
    yield from ("| room | imports from | is imported by |", "|---|---|---|")
    for room in ordered:
        users = [other for other in ordered if room in graph[other]]
        imports = [other for other in ordered if other in graph[room]]
        yield f"| `{room}` | {', '.join(imports) or 'none'} | {', '.join(users) or 'none'} |"
    place = {room: i for i, room in enumerate(ordered)}
    up = [f"`{room}` imports from `{other}`" for room in ordered for other in graph[room] if place[other] > place[room]]
    yield ""
    yield f"Against this order: {'; '.join(sorted(up))}." if up else "No room imports from one below it."


def said(path: Path) -> str:
    """The first paragraph of a module's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


def listed(source: Path) -> Iterator[str]:
    """The modules of a package, folder by folder."""
    folders: dict[Path, list[Path]] = defaultdict(list)
    for path in modules(source):
        folders[path.parent].append(path)
    for folder, members in sorted(folders.items()):
        inside = folder.relative_to(source.parent).as_posix()
        here = folder / "__init__.py"
        yield from (f"### {inside}", "")
        if here in members and (text := said(here)):
            yield from (text, "")
        rows = [f"| `{path.name}` | {said(path)} |" for path in members if path != here]
        if rows:
            yield from ("| module | role |", "|---|---|", *rows, "")


def page() -> str:
    """The page's text."""
    lines = [HEADER, *arrows(rooms()), ""]
    for package in sorted((ROOT / "packages").iterdir()):
        for source in sorted(p for p in (package / "src").glob("*") if (p / "__init__.py").exists()):
            lines += [f"## {source.name}", "", f"In `{source.relative_to(ROOT).as_posix()}`.", "", *listed(source)]
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """Write or check the page; return the exit code."""
    parser = argparse.ArgumentParser(description="Makes docs/maintainers/modules.md from the source.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where the page is out of date")
    arguments = parser.parse_args()
    text, target = page(), ROOT / PAGE
    if not arguments.check:
        target.write_text(text, encoding="utf-8", newline="\n")
        print(PAGE)
        return 0
    if not target.exists() or target.read_bytes() != text.encode():
        print(f"{PAGE} is out of date; run: python scripts/make_module_map.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
