"""Building blocks of the pages of figures: tables, numbers, and the rules that they share."""

from collections.abc import Collection, Iterable, Iterator

EQUAL = 0.98
"""Within 2 % is equal (the design's rule), so that a bound "never below" is met from here on."""
NO_REASON = "reason not found yet"
"""Stands where about.toml has no reason for a miss; a page with it is not finished."""


def table(head: list[str], rows: Iterable[list[str]], left: Collection[int] = (0, 1)) -> Iterator[str]:
    """A Markdown table; the columns with these numbers are left-aligned; the others hold numbers, right-aligned."""
    yield "| " + " | ".join(head) + " |"
    yield "|" + "|".join("---" if i in left else "---:" for i in range(len(head))) + "|"
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


def details(summary: str, lines: Iterable[str]) -> Iterator[str]:
    """Lines that a reader unfolds; Markdown inside is rendered by the site and by code hosts alike."""
    yield from ('<details markdown="1">', f"<summary>{summary}</summary>", "", *lines, "</details>", "")


def number(value: float | None, digits: int = 3) -> str:
    """A number with so many digits, or a dash; from 1000 on whole, and as a power of ten where that would be long."""
    if value is None:
        return "-"
    return f"{value:.0f}" if 1000 <= value < 1e9 else f"{value:.{digits}g}"


def ratio(value: float | None, least: float = 0.0) -> str:
    """A ratio with two decimal places; with more if two would round it up to the required minimum."""
    if value is None:
        return "-"
    places = 2
    while value < least <= float(f"{value:.{places}f}"):
        places += 1
    return f"{value:.{places}f}"
