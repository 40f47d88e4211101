"""Which headers a source includes: they are part of a kernel's cache key.

``#include`` lines are followed through the source's own folders and in-memory headers. What is found in neither belongs
to the compiler, whose version is part of the key. Preprocessor conditions are not evaluated: a header that is included
under any condition counts.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from opmux_jit.compilers.source import Source

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>|(\S.*))', re.MULTILINE)
_HEADERS = (".h", ".hh", ".hpp", ".hxx", ".cuh", ".inl", ".inc", "")


def included(source: Source) -> Iterator[tuple[str, bytes]]:
    """Each header that the source may include, once: a name that does not depend on the machine, and its contents.

    The name is relative to the folder where the header was found. Where an ``#include`` is computed by a macro, every
    header of the source's folders counts.
    """
    seen: set[str] = set()
    todo: list[tuple[str, Path | None]] = [(source.text, None)]
    while todo:
        text, beside = todo.pop()
        for quoted, angled, computed in _INCLUDE.findall(text):
            if computed:
                found = list(_all_headers(source))
            else:
                header = _find(source, quoted or angled, beside if quoted else None)
                found = [] if header is None else [header]
            for name, contents, folder in found:
                if name not in seen:
                    seen.add(name)
                    yield name, contents
                    todo.append((contents.decode("utf-8", "replace"), folder))


def _find(source: Source, name: str, beside: Path | None) -> tuple[str, bytes, Path | None] | None:
    if name in source.headers:
        return f"<memory>/{name}", source.headers[name].encode(), None
    for place in (*([beside] if beside else []), *source.include_dirs):
        path = place / name
        if path.is_file():
            return f"{_relative(source, path)}", path.read_bytes(), path.parent
    return None


def _all_headers(source: Source) -> Iterator[tuple[str, bytes, Path | None]]:
    for name, text in source.headers.items():
        yield f"<memory>/{name}", text.encode(), None
    for place in source.include_dirs:
        for path in sorted(p for p in place.rglob("*") if p.suffix in _HEADERS and p.is_file()):
            yield _relative(source, path), path.read_bytes(), path.parent


def _relative(source: Source, path: Path) -> str:
    """A header's path within the include folder that has it: the same wherever the folder lies."""
    whole = path.resolve()
    for number, place in enumerate(source.include_dirs):
        root = place.resolve()
        if whole.is_relative_to(root):
            return f"<{number}>/{whole.relative_to(root).as_posix()}"
    return whole.as_posix()
