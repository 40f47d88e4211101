"""The page of whole Hugging Face models, and its plot: docs/benchmarks/models.md and models.svg.

``models.json`` is what packages/transformers/benchmarks/models.py wrote; table ``models`` of ``about.toml`` has the
date, commands, names and notes, table ``reasons`` why a figure was missed: ``models, llama-1b, prefill``, or
``models, prefill`` for every model.
"""

import json
import tomllib
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from page_parts import EQUAL, NO_REASON, number, ratio, table

WORK = {
    "prefill": "prefill 2048",
    "decode-1": "decode {steps}, batch 1",
    "decode-8": "decode {steps}, batch 8",
    "decode-64": "decode {steps}, batch 64",
    "training": "training 4 x 2048",
}
"""What is done with a model, and the words for it."""
OTHERS = ("eager", "compiled", "liger", "tilegym")
PATCHED = ("opmux", "opmux compiled", "opmux graph")
TO_EAGER = {"prefill": 1.3, "training": 1.3, "decode-8": 1.5}
"""The least that the patched model shall be over the unpatched one, both eager."""
TO_BEST = 1.0
"""The least that the patched model at its best shall be over the best other row."""


class Work:
    """One kind of work with one model: the rates of its rows, and what is wanted of them."""

    def __init__(self, model: str, work: str, rows: dict[str, Any]) -> None:
        self.model, self.work, self.rows = model, work, rows
        self.rates: dict[str, float] = {n: r["tokens_per_second"] for n, r in rows.items() if "tokens_per_second" in r}
        self.other = max((n for n in OTHERS if n in self.rates), key=self.rates.__getitem__, default=None)
        self.best = max((n for n in PATCHED if n in self.rates), key=self.rates.__getitem__, default=None)

    def names(self) -> Iterator[str]:
        """The rows in their order; graphs are captured for decoding only."""
        yield from (n for n in (*OTHERS, *PATCHED) if n != "opmux graph" or n in self.rows or "decode" in self.work)

    def over(self, name: str | None, base: str | None) -> float | None:
        """The rate of a row over that of another; None where one of them has none."""
        return self.rates[name] / self.rates[base] if name in self.rates and base in self.rates else None

    def why_none(self, name: str) -> str:
        """Why a row has no rate, or failed after it had one."""
        row = self.rows.get(name, {})
        for key, words in (("left_out", "left out"), ("failed", "failed later" if name in self.rates else "failed")):
            if key in row:
                return f"{words}: {code(row[key])}"
        return "" if name in self.rates else "not measured"

    def verdicts(self) -> Iterator[tuple[str, str, float | None, float, bool]]:
        """Each figure that is wanted: the row it is for, what that is over, the value, the least, and if it is met."""
        if self.work in TO_EAGER:
            value, least = self.over("opmux", "eager"), TO_EAGER[self.work]
            yield "opmux", "eager", value, least, value is not None and value >= least
        value = self.over(self.best, self.other)
        yield self.best or PATCHED[0], "best other", value, TO_BEST, value is not None and value >= TO_BEST * EQUAL


def code(reason: str) -> str:
    """The first sentence of an error's message, as code, so that nothing in it is Markdown."""
    return "`" + " ".join(reason.split()).partition(". ")[0].replace("`", "'").replace("|", "/") + "`"


def works_of(data: dict[str, Any], model: str) -> list[Work]:
    """All work with a model, also what was not measured."""
    found = data["models"].get(model, {})
    return [Work(model, work, found.get(work, {})) for work in WORK]


def words(data: dict[str, Any], work: str) -> str:
    """The words for a kind of work."""
    return WORK[work].format(steps=data["steps"])


def model_rows(data: dict[str, Any], works: list[Work]) -> Iterator[list[str]]:
    """A model's table."""
    for work in works:
        said: dict[str, list[str]] = {}
        for name, base, value, least, met in work.verdicts():
            verdict = "not measured" if value is None else "met" if met else "missed"
            said.setdefault(name, []).append(f"{ratio(value, least)} of {least} x {base}: {verdict}")
        if not work.rows:
            yield [words(data, work.work), "all", *["-"] * 4, "not measured"]
            continue
        for name in work.names():
            peak = work.rows.get(name, {}).get("peak_gib")
            last = [*filter(None, [work.why_none(name)]), *said.get(name, [])]
            yield [
                words(data, work.work),
                name,
                number(work.rates.get(name)),
                "-" if peak is None else f"{peak:.1f}",
                ratio(work.over(name, "eager")),
                ratio(work.over(name, work.other)),
                "; ".join(last),
            ]


def misses(data: dict[str, Any], works: list[Work], reasons: dict[str, str]) -> Iterator[str]:
    """A line for each work in which a figure was missed."""
    for work in works:
        missed = []
        for _, base, value, least, met in work.verdicts():
            which = f"{base} ({work.other})" if base == "best other" and work.other else base
            if value is None:
                missed.append(f"not measured, wanted {least} of {which}")
            elif not met:
                missed.append(f"{ratio(value, least)} of {which}, wanted {least}")
        if missed:
            key = f"models, {work.model}, {work.work}"
            why = reasons.get(key) or reasons.get(f"models, {work.work}") or f"{NO_REASON} ({key})"
            yield f"- {work.model}, {words(data, work.work)}: {'; '.join(missed)}. {why}"


def read(folder: Path) -> dict[str, Any]:
    """What was measured."""
    data: dict[str, Any] = json.loads((folder / "data" / "models.json").read_text(encoding="utf-8"))
    return data


def models_page(folder: Path) -> str:
    """The page's text."""
    data = read(folder)
    whole = tomllib.loads((folder / "data" / "about.toml").read_text(encoding="utf-8"))
    about, reasons = whole["models"], whole["reasons"]
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    lines = [
        "# Hugging Face models on an H200",
        "",
        f"{data['device']}, {data['dtype']}, {versions}, {about['date']}. Generated by "
        "`scripts/make_benchmark_page.py` from the files in `docs/benchmarks/data`.",
        "",
        about["text"].strip(),
        "",
        "*To eager* is a row's rate over that of transformers as it is, *to best other* over that of the fastest row "
        "without opmux: above 1 is faster. Wanted are, of the patched model, 1.3 times the unpatched one in prefill "
        "and training and 1.5 times in decoding at batch 8, both eager; and, at its best, no work slower than the best "
        "other row. Within 2 % is equal.",
        "",
        "```",
        *about["commands"],
        "```",
        "",
        "![rates of every row](models.svg)",
        "",
    ]
    names: dict[str, str] = about["names"]
    missed: list[str] = []
    head = ["work", "row", "tokens/s", "peak, GiB", "to eager", "to best other", "wanted"]
    for model in dict.fromkeys((*names, *data["models"])):
        works = works_of(data, model)
        lines += [f"## {names.get(model, model)} (`{model}`)", "", *table(head, [*model_rows(data, works)])]
        missed += misses(data, works, reasons)
    lines += ["## What was missed, and why", "", *(missed or ["Nothing."]), "", *about["notes"]]
    return "\n".join(lines).rstrip() + "\n"


ROW, LEFT, BARS, RIGHT = 18, 150, 420, 230


def models_plot(folder: Path) -> str:
    """Each work's rows as bars, as long as their rate over the fastest one's; the line is the unpatched eager model."""
    data = read(folder)
    blocks: list[str] = []
    top = 2 * ROW + 8
    for model in data["models"]:
        for work in works_of(data, model):
            if work.rates:
                names = [*work.names()]
                blocks += group(work, names, f"{model}, {words(data, work.work)}", top)
                top += ROW * (len(names) + 2)
    width = LEFT + BARS + RIGHT
    title = escape(f"Tokens per second: {data['device']}, {data['dtype']}, torch {data['versions']['torch']}")
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}" viewBox="0 0 {width} {top}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{top}" fill="white"/>',
        f'<text x="8" y="{ROW}" font-size="14" font-weight="bold">{title}</text>',
    ]
    return "\n".join([*head, *blocks, "</svg>"]) + "\n"


def group(work: Work, names: list[str], title: str, top: int) -> Iterator[str]:
    """The bars of one kind of work with one model."""
    fastest = max(work.rates.values())
    yield f'<text x="8" y="{top + ROW - 5}" font-weight="bold">{escape(title)}</text>'
    if "eager" in work.rates:
        x, bottom = LEFT + BARS * work.rates["eager"] / fastest, top + ROW * (len(names) + 1)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top + ROW}" y2="{bottom}" stroke="#c4cad2"/>'
    for row, name in enumerate(names, start=1):
        y, text_y = top + row * ROW, top + (row + 1) * ROW - 5
        weight = ' font-weight="bold"' if name in (work.best, work.other) else ""
        yield f'<text x="{LEFT - 8}" y="{text_y}" text-anchor="end"{weight}>{escape(name)}</text>'
        rate = work.rates.get(name)
        if rate is None:
            why = work.why_none(name).partition(":")[0]
            yield f'<text x="{LEFT + 6}" y="{text_y}" fill="#6b7280">{why}</text>'
            continue
        length, colour = BARS * rate / fastest, "#2c6fbb" if name in PATCHED else "#9aa5b1"
        over = work.over(name, "eager")
        said = number(rate) + (f" tokens/s, {ratio(over)} x eager" if over is not None else " tokens/s")
        yield f'<rect x="{LEFT}" y="{y + 3}" width="{length:.1f}" height="{ROW - 6}" fill="{colour}"/>'
        yield f'<text x="{LEFT + length + 6:.1f}" y="{text_y}">{said}</text>'
