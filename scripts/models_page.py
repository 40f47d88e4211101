"""The page of whole Hugging Face models, and its plot: docs/benchmarks/models.md and models.svg.

``models.json`` is what packages/transformers/benchmarks/models.py wrote; table ``models`` of ``about.toml`` has the
date, commands, names and notes, table ``reasons`` why a figure was missed: ``models, llama-1b, prefill``, or
``models, prefill`` for every model.
"""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from page_parts import EQUAL, NO_REASON, details, number, ratio, table

from opmux.bench.plots.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Mark,
    figure,
    rows_axis,
    speedup_axis,
    styled,
    svg_of,
)

WORK = {
    "prefill": "prefill 2048",
    "decode-1": "decode {steps}, batch 1",
    "decode-8": "decode {steps}, batch 8",
    "decode-64": "decode {steps}, batch 64",
    "training": "training 4 x 2048",
}
"""What is done with a model, and the words for it."""
OTHERS = ("eager", "compiled", "liger", "tilegym")
RECOMPUTING = "opmux recompute"
"""The eager patched model with ``recompute=True``, in training: where it was measured, its memory is held against
Liger's, else that of "opmux"."""
PATCHED = ("opmux", RECOMPUTING, "opmux compiled", "opmux graph")
TO_EAGER = {"prefill": 1.3, "training": 1.3, "decode-8": 1.5}
"""The targets of the patched model over the unpatched one, both eager."""
TO_BEST = 1.0
"""The target of the best patched row over the best other row."""
TO_LIGER = {("llama-1b", "training"): 1.12}
"""The targets of the best patched row over Liger; the patched model in eager mode takes no more memory than Liger."""


class Work:
    """One kind of work with one model: the rates of its rows, and what is wanted of them."""

    def __init__(self, model: str, work: str, rows: dict[str, Any]) -> None:
        self.model, self.work, self.rows = model, work, rows
        self.rates: dict[str, float] = {n: r["tokens_per_second"] for n, r in rows.items() if "tokens_per_second" in r}
        self.other = max((n for n in OTHERS if n in self.rates), key=self.rates.__getitem__, default=None)
        self.best = max((n for n in PATCHED if n in self.rates), key=self.rates.__getitem__, default=None)

    def names(self) -> Iterator[str]:
        """The rows in their order; graphs are captured for decoding only, and recomputing is optional."""
        always = {"opmux graph": "decode" in self.work, RECOMPUTING: False}
        yield from (n for n in (*OTHERS, *PATCHED) if n in self.rows or always.get(n, True))

    def over(self, name: str | None, base: str | None) -> float | None:
        """The rate of a row over that of another; None where one of them has none."""
        return self.rates[name] / self.rates[base] if name in self.rates and base in self.rates else None

    def why_none(self, name: str) -> str:
        """Why a row has no rate, or failed after it had one, or how many tokens it decoded if fewer than others."""
        row = self.rows.get(name, {})
        for key, words in (("left_out", "left out"), ("failed", "failed later" if name in self.rates else "failed")):
            if key in row:
                return f"{words}: {code(row[key])}"
        if "steps" in row:
            return f"{row['steps']} tokens decoded"
        return "" if name in self.rates else "not measured"

    def verdicts(self) -> Iterator[tuple[str, str, float | None, float, bool]]:
        """Each figure that is wanted: the row it is for, what that is over, the value, the least, and if it is met."""
        if self.work in TO_EAGER:
            value, least = self.over("opmux", "eager"), TO_EAGER[self.work]
            yield "opmux", "eager", value, least, value is not None and value >= least
        value = self.over(self.best, self.other)
        yield self.best or PATCHED[0], "best other", value, TO_BEST, value is not None and value >= TO_BEST * EQUAL
        if least := TO_LIGER.get((self.model, self.work)):
            value = self.over(self.best, "liger")
            yield self.best or PATCHED[0], "liger", value, least, value is not None and value >= least
            name = RECOMPUTING if RECOMPUTING in self.rows else "opmux"
            value = self.smaller(name, "liger")
            yield name, "liger in peak memory", value, 1.0, value is not None and value >= 1

    def smaller(self, name: str, base: str) -> float | None:
        """The peak memory of `base` over that of `name`: 1 or more where `name` takes no more; None if not known."""
        peaks = [self.rows.get(each, {}).get("peak_gib") for each in (base, name)]
        return None if None in peaks else peaks[0] / peaks[1]


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


HEAD = ["speedup over best other", "speedup over eager", "work", "row", "tokens/s", "peak, GiB", "target"]


def model_rows(data: dict[str, Any], works: list[Work]) -> Iterator[list[str]]:
    """A model's table; the speedups come first."""
    for work in works:
        said: dict[str, list[str]] = {}
        for name, base, value, least, met in work.verdicts():
            verdict = "not measured" if value is None else "met" if met else "missed"
            said.setdefault(name, []).append(f"{ratio(value, least)} of {least} x {base}: {verdict}")
        if not work.rows:
            yield ["-", "-", words(data, work.work), "all", "-", "-", "not measured"]
            continue
        for name in work.names():
            peak = work.rows.get(name, {}).get("peak_gib")
            last = [*filter(None, [work.why_none(name)]), *said.get(name, [])]
            yield [
                ratio(work.over(name, work.other)),
                ratio(work.over(name, "eager")),
                words(data, work.work),
                name,
                number(work.rates.get(name)),
                "-" if peak is None else f"{peak:.1f}",
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
        "![tokens per second of every row, as a multiple of the fastest row without opmux](models.svg)",
        "",
        f"{data['device']}, {data['dtype']}, {versions}, {about['date']}. Generated by "
        "`scripts/make_benchmark_page.py` from the files in `docs/benchmarks/data`.",
        "",
        about["text"].strip(),
        "",
        "*Speedup over eager* is a row's rate over that of transformers as it is, *speedup over best other* over that "
        "of the fastest row without opmux. The targets: the patched model reaches 1.3 times the unpatched one in "
        "prefill and training and 1.5 times in decoding at batch 8, both eager; and in every kind of work its best row "
        "is at least as fast as the best other row. Rates within 2 % of each other count as equal. Training of "
        "`llama-1b` reaches 1.12 times Liger's rate, and the eager patched model takes no more memory than with Liger "
        "(the ratio is Liger's peak over opmux's).",
        "",
        "```",
        *about["commands"],
        "```",
        "",
    ]
    names: dict[str, str] = about["names"]
    missed: list[str] = []
    for model in dict.fromkeys((*names, *data["models"])):
        works = works_of(data, model)
        best = [f"{ratio(w.over(w.best, w.other))}x in {words(data, w.work)}" for w in works if w.over(w.best, w.other)]
        lines += [f"## {names.get(model, model)} (`{model}`)", ""]
        rows = table(HEAD, model_rows(data, works), left=(2, 3, 6))
        lines += details(f"opmux over the best other row: {', '.join(best) or 'not measured'}", rows)
        missed += misses(data, works, reasons)
    lines += ["## What was missed, and why", "", *(missed or ["Nothing."]), "", *about["notes"]]
    return "\n".join(lines).rstrip() + "\n"


OTHER_MARKS = {
    "eager": Mark(VERMILION, "x", 40),
    "compiled": Mark(ORANGE, "D", 36),
    "liger": Mark(GREEN, "^", 40),
    "tilegym": Mark(PURPLE, "v", 40),
}
PATCHED_MARKS = {
    "opmux": Mark(BLUE, "o", 52),
    RECOMPUTING: Mark(BLUE, "P", 52),
    "opmux compiled": Mark(SKY, "D", 46),
    "opmux graph": Mark(GREEN, "s", 46),
}


def models_plot(folder: Path) -> str:
    """A panel for each model: the rate of every row, as a multiple of the fastest row without opmux."""
    data = read(folder)
    names: dict[str, str] = tomllib.loads((folder / "data" / "about.toml").read_text(encoding="utf-8"))["models"][
        "names"
    ]
    with styled():
        drawn = figure(11, 1.9 + 0.36 * len(WORK))
        panels = drawn.subplots(1, len(data["models"]), sharey=True, squeeze=False)[0]
        every = [work for model in data["models"] for work in works_of(data, model)]
        speeds = [work.over(n, work.other) for work in every for n in work.rates]
        limits = (min(s for s in speeds if s) / 1.15, max(s for s in speeds if s) * 1.15)
        for axes, model in zip(panels, data["models"], strict=True):
            panel(axes, data, works_of(data, model))
            speedup_axis(axes, *limits)
            axes.set_title(names.get(model, model))
        head = (
            f"{data['device']}, {data['dtype']}, torch {data['versions']['torch']}",
            "tokens per second over those of the fastest row without opmux (log)",
            "right: opmux's best row",
        )
        drawn.suptitle("  |  ".join(head), fontsize=9, color=GREY, x=0.008, ha="left")
        handles = [Line2D([], [], label=name, **mark.line(filled=False)) for name, mark in OTHER_MARKS.items()]
        shown = {n: m for n, m in PATCHED_MARKS.items() if n != RECOMPUTING or any(n in w.rates for w in every)}
        handles += [Line2D([], [], label=name, **mark.line(filled=True)) for name, mark in shown.items()]
        drawn.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return svg_of(drawn)


def panel(axes: Axes, data: dict[str, Any], works: list[Work]) -> None:
    """One model: a row for each kind of work."""
    rows_axis(axes, [words(data, work.work) for work in works])
    for row, work in enumerate(works):
        for name in (*OTHERS, *PATCHED):
            speed = work.over(name, work.other)
            if speed is not None:
                filled = name in PATCHED_MARKS
                mark = PATCHED_MARKS[name] if filled else OTHER_MARKS[name]
                axes.plot(speed, row, zorder=3 + filled, **mark.line(filled=filled))
        best = work.over(work.best, work.other)
        said = "not measured" if best is None else f"{best:.2f}x"
        axes.annotate(said, (1, row), xycoords=("axes fraction", "data"), xytext=(6, -3), textcoords="offset points",
                      fontsize=9, fontweight="bold")  # fmt: skip
