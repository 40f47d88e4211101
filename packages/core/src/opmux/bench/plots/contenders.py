"""Every contender of every case: a row for each case, a mark for each contender."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

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
)
from opmux.bench.plots.summary import taken
from opmux.bench.results import PEER, CaseResult

_IMPLEMENTATIONS = [Mark(BLUE, "o", 42), Mark(SKY, "D", 38), Mark(GREEN, "s", 38), Mark(PURPLE, "P", 46)]
_PEERS = [
    Mark(GREEN, "^", 36), Mark(PURPLE, "v", 36), Mark(GREY, "s", 34), Mark(VERMILION, "x", 34), Mark(ORANGE, "D", 30),
    Mark(BLUE, "+", 40),
]  # fmt: skip


def marks_of(cases: Sequence[CaseResult]) -> dict[str, Mark]:
    """A mark for each contender: filled for implementations, hollow for peers."""
    found: dict[str, Mark] = {}
    for peers, marks in ((False, _IMPLEMENTATIONS), (True, _PEERS)):
        names = sorted({c.name for case in cases for c in case.contenders if (c.kind == PEER) is peers})
        found |= {name: marks[i % len(marks)] for i, name in enumerate(names)}
    return found


def contenders(cases: Sequence[CaseResult], title: str, marks: Mapping[str, Mark] | None = None) -> Figure:
    """Draw cases as rows: how fast each contender is, as a multiple of the best peer's speed.

    A line spans the middle half of a contender's rounds; the text on the right is the median of opmux's choice. Without
    a peer, speeds are multiples of the fastest contender's.

    Args:
        cases: The cases to draw; those without a timed contender are omitted.
        title: The title above the picture.
        marks: The result of `marks_of` for a larger run, so that all its pictures use the same marks.
    """
    cases = [case for case in cases if case.contenders]
    marks = marks_of(cases) if marks is None else marks
    with styled():
        drawn = figure(9.5, 1.5 + 0.24 * max(len(cases), 1))
        axes = drawn.subplots()
        axes.set_title(title)
        many = len({case.op for case in cases}) > 1
        rows_axis(axes, [f"{case.op}, {case.case}" if many else case.case for case in cases])
        speeds = [1.0]
        for row, case in enumerate(cases):
            mine = taken(case)
            base = min((c.median_us for c in case.contenders if c.kind == PEER), default=None)
            base = base or min(c.median_us for c in case.contenders)
            for c in case.contenders:
                mark, speed = marks[c.name], base / c.median_us
                speeds.append(speed)
                axes.plot([base / c.q3_us, base / c.q1_us], [row, row], color=mark.colour, linewidth=1.2, zorder=2)
                axes.plot(speed, row, zorder=3 + (c.kind != PEER), **mark.line(filled=c.kind != PEER))
            if mine is not None:
                rate = f", {mine.tflops:.0f} TFLOPS" if case.bound == "compute" and mine.tflops else ""
                time = f"{mine.median_us:.1f}" if mine.median_us < 1000 else f"{mine.median_us:.0f}"
                axes.annotate(f"{time} us{rate}", (1, row), xycoords=("axes fraction", "data"), xytext=(8, 0),
                              textcoords="offset points", va="center", fontsize=8.5)  # fmt: skip
        speedup_axis(axes, min(speeds) / 1.1, max(speeds) * 1.1)
        axes.set_xlabel("speed / speed of the best peer (log; right: time of opmux's choice)")
        kinds = {c.name: c.kind for case in cases for c in case.contenders}
        handles = [
            Line2D([], [], label=name, **mark.line(filled=kinds[name] != PEER))
            for name, mark in marks.items()
            if name in kinds
        ]
        if handles:
            drawn.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 6))
    return drawn
