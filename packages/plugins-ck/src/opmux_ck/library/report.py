"""What `opmux doctor` shows of Composable Kernel."""

from collections.abc import Iterator

from opmux_ck.library.places import Library, first_named


def toolchains() -> Iterator[dict[str, str | None]]:
    """The library that is used, its version with what is wrong with it, and its include folder."""
    found = first_named()
    library = found if isinstance(found, Library) else None
    yield {
        "name": "composable kernel",
        "version": found if isinstance(found, str) else None if library is None else _state(library),
        "path": None if library is None else f"{library.include} ({library.origin})",
    }


def _state(library: Library) -> str:
    ops: dict[str, list[str]] = {}
    for op, headers in library.lacks().items():
        ops.setdefault(headers, []).append(op)
    lacks = "; ".join(f"lacks {headers} for {', '.join(names)}" for headers, names in ops.items())
    problem = "too old" if library.refusal() else lacks
    return f"{library.shown_version}, {problem}" if problem else library.shown_version
