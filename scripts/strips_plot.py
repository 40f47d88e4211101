"""A picture of ratios: a row for each kind of call, a point for each call, a line where the target is."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.lines import Line2D

from opmux.bench.plots.style import BLUE, GREY, VERMILION, Mark, figure, rows_axis, speedup_axis, styled, svg_of

REACHED, MISSED = Mark(BLUE, "o", 26), Mark(VERMILION, "D", 22)
ROW_INCHES = 0.27


class Strip(NamedTuple):
    """A kind of call: the ratio of each call to a peer's speed, and what is wanted of each, or of their mean."""

    label: str
    ratios: Sequence[float]
    wanted: float | None = None


def strips_plot(said: str, strips: Sequence[Strip]) -> str:
    """The picture as SVG.

    Args:
        said: what stands above it.
        strips: from the top down; those without a call are left out.
    """
    rows = [
        Strip(strip.label, found, strip.wanted)
        for strip in strips
        if (found := [one for one in strip.ratios if not math.isnan(one)])
    ]
    every = [value for row in rows for value in (*row.ratios, row.wanted or 1.0)]
    with styled():
        drawn = figure(9, 0.9 + ROW_INCHES * len(rows))
        axes = drawn.subplots()
        for place, row in enumerate(rows):
            if row.wanted is not None:
                axes.plot([row.wanted] * 2, [place - 0.38, place + 0.38], color=GREY, linewidth=1.6, zorder=2)
            for mark, some in (
                (REACHED, [one for one in row.ratios if row.wanted is None or one >= row.wanted]),
                (MISSED, [one for one in row.ratios if row.wanted is not None and one < row.wanted]),
            ):
                axes.plot(some, [place] * len(some), **mark.line(filled=mark is REACHED), zorder=3)
        speedup_axis(axes, min(0.5, *every) / 1.08, max(1.5, *every) * 1.08)
        rows_axis(axes, [f"{row.label}  ({len(row.ratios)})" for row in rows])
        handles = [
            Line2D([], [], label="at the target or above, or without one", **REACHED.line(filled=True)),
            Line2D([], [], label="below", **MISSED.line(filled=False)),
            Line2D([], [], label="target", color=GREY, linewidth=1.6),
        ]
        drawn.legend(handles=handles, loc="outside lower center", ncols=3)
        drawn.suptitle(said, fontsize=9, color=GREY, x=0.008, ha="left")
    return svg_of(drawn)
