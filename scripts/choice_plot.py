"""The picture of docs/benchmarks/choice.md: the speedup over the best of torch, over the size of a call."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from choice_page import Row, runs
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from opmux.bench.plots.style import BLUE, GREY, ORANGE, PURPLE, VERMILION, Mark, figure, styled, svg_of

MARKS = {
    "triton": Mark(BLUE, "o", 26),
    "vendor": Mark(ORANGE, "D", 22),
    "opmux": Mark(PURPLE, "v", 26),
    "reference": Mark(VERMILION, "x", 30),
}
PANELS = (
    ("linear", ("linear-decode", "linear-batch", "linear-prefill"), "tokens"),
    ("attention", ("attention",), "tokens"),
    ("attention_backward", ("attention_backward",), "tokens"),
    ("linear_backward", ("linear_backward",), "tokens"),
    ("norms", ("norms",), "elements"),
)
"""Title, groups (or ops before the head size), and what the axis below counts."""
TICKS = (0.25, 0.5, 0.7, 0.85, 1, 1.25, 1.5, 2, 3, 5, 10)


def size_of(row: Row, counted: str) -> int:
    """The size of a call: its tokens, or all elements of its rows."""
    dims = row.point["dims"]
    tokens: int = dims["tokens"] if "tokens" in dims else dims["batch"] * dims["seq_q"]
    return tokens * dims["hidden"] if counted == "elements" else tokens


def choice_plot(folder: Path) -> str:
    """A panel for each op of the first run."""
    run = runs(folder)[0]
    with styled():
        drawn = figure(11, 6.4)
        panels = drawn.subplots(2, 3).flat
        for axes, (title, groups, counted) in zip(panels, PANELS, strict=False):
            rows = [r for r in run.rows if {r.group, r.group.partition("-")[0]} & set(groups) and r.speedup]
            panel(axes, title, rows, counted)
        panels[-1].axis("off")
        present = dict.fromkeys(row.chosen.partition(":")[0] for row in run.rows)
        handles = [
            Line2D([], [], label=f"{name} chosen", **mark.line(filled=name != "reference"))
            for name, mark in MARKS.items()
            if name in present
        ]
        panels[-1].legend(handles=handles, loc="center")
        versions: dict[str, Any] = run.head["versions"]
        said = f"{run.head['device']}, torch {versions['torch']}  |  time of the best of torch over that of the choice"
        drawn.suptitle(said, fontsize=9, color=GREY, x=0.008, ha="left")
    return svg_of(drawn)


def panel(axes: Axes, title: str, rows: Sequence[Row], counted: str) -> None:
    """One op: every call as a point."""
    for name, mark in MARKS.items():
        own = [row for row in rows if row.chosen.partition(":")[0] == name]
        speedups = [row.speedup or 1.0 for row in own]
        axes.plot([size_of(row, counted) for row in own], speedups, **mark.line(filled=name != "reference"))
    axes.set_title(title)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}" if value < 1e5 else f"{value:.0e}"))
    axes.set_xlabel(counted)
    axes.set_yscale("log")
    found = [row.speedup or 1.0 for row in rows] or [1.0]
    axes.set_ylim(min(0.8, *found) / 1.1, max(1.3, *found) * 1.1)
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(FixedLocator([tick for tick in TICKS if low <= tick <= high]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    axes.axhline(1, color=GREY, linewidth=1, zorder=1)
