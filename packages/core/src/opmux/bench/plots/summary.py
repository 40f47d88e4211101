"""A whole run on one screen: speedup over the best peer for every op and shape class, and the roofline beside it."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from opmux.bench.plots.style import BLUE, GREY, ORANGE, VERMILION, Mark, figure, rows_axis, speedup_axis, styled
from opmux.bench.results import IMPLEMENTATION, PEER, CaseResult, Contender, Report

LAUNCH_US = 5.0
"""A call whose least time is below this is bound by the launch of its kernel, not by the kernel's work."""

CLASSES = {
    "launch": ("small: the launch dominates", Mark(ORANGE, "o", 26)),
    "memory": ("bound by memory", Mark(BLUE, "s", 30)),
    "compute": ("bound by compute", Mark(VERMILION, "D", 28)),
}
"""Shape classes: the word, its label, its mark."""

OFF_SCALE = 4.0
"""Speedups above this are drawn at the edge with their value, so that the rest of the axis stays readable."""


def shape_class(case: CaseResult) -> str:
    """What bounds a call: the launch, memory or compute."""
    return "launch" if case.least_us < LAUNCH_US else case.bound


def taken(case: CaseResult) -> Contender | None:
    """The implementation that opmux chooses for the case; if it was not timed, the fastest one that was."""
    mine = [c for c in case.contenders if c.kind == IMPLEMENTATION]
    return next((c for c in mine if c.chosen), min(mine, key=lambda c: c.median_us, default=None))


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean of positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values))


def speedups(report: Report) -> dict[str, list[tuple[str, float]]]:
    """Op -> (shape class, speedup over the best peer) of each case; the op with the largest gain is first."""
    found: dict[str, list[tuple[str, float]]] = {}
    for case in report.cases:
        mine = taken(case)
        if mine is not None and mine.ratio is not None:
            found.setdefault(case.op, []).append((shape_class(case), mine.ratio))
    return dict(sorted(found.items(), key=lambda item: -geometric_mean([ratio for _, ratio in item[1]])))


def summary(report: Report) -> Figure:
    """Draw a run: on the left a row for each op, on the right every case against the ceilings of the device."""
    found = speedups(report)
    with styled():
        drawn = figure(11.5, max(3.6, 1.75 + 0.235 * len(found)))
        left, right = drawn.subplots(1, 2, width_ratios=(1.5, 1))
        _speedups(left, found)
        _roofline(right, report)
        present = {shape_class(c) for c in report.cases if taken(c)}
        marks = [
            Line2D([], [], color=mark.colour, marker=mark.shape, linestyle="", label=label)
            for name, (label, mark) in CLASSES.items()
            if name in present
        ]
        marks.append(Line2D([], [], color=GREY, marker="x", linestyle="", label="best peer"))
        drawn.legend(handles=marks, loc="outside lower center", ncols=len(marks))
        peers = dict.fromkeys(c.name for case in report.cases for c in case.contenders if c.kind == PEER)
        ceilings = report.ceilings
        words = (
            f"{report.device}, {report.dtype}, torch {report.torch}",
            f"peers: {'; '.join(peers) or 'none'}",
            f"ceilings: copy {ceilings.copy_gbps / 1000:.3g} TB/s, product {ceilings.matmul_tflops:.3g} TFLOPS",
        )
        drawn.suptitle("  |  ".join(words), fontsize=9, color=GREY, x=0.008, ha="left")
    return drawn


def _speedups(axes: Axes, found: dict[str, list[tuple[str, float]]]) -> None:
    axes.set_title("Speedup over the best peer" if found else "No peer was timed")
    rows_axis(axes, list(found))
    values = [ratio for cases in found.values() for _, ratio in cases] or [1.0]
    low, high = min(0.9, min(values) / 1.05), max(1.5, min(OFF_SCALE, max(values)) * 1.06)
    speedup_axis(axes, low, high)
    for row, cases in enumerate(found.values()):
        kinds = [kind for kind in CLASSES if any(k == kind for k, _ in cases)]
        for place, kind in enumerate(kinds):
            y = row + 0.22 * (place - (len(kinds) - 1) / 2)
            mark = CLASSES[kind][1]
            shown = [ratio for k, ratio in cases if k == kind and ratio <= OFF_SCALE]
            axes.scatter(shown, [y] * len(shown), s=mark.size, marker=mark.shape, color=mark.colour,
                         alpha=0.8, linewidths=0.5, edgecolors="white", zorder=3)  # fmt: skip
        beyond = sorted(ratio for _, ratio in cases if ratio > OFF_SCALE)
        if beyond:
            text = f"{beyond[0]:.0f}x" if len(beyond) == 1 else f"{beyond[0]:.0f}x to {beyond[-1]:.0f}x"
            axes.text(high / 1.02, row, f"{text} ▸", ha="right", va="center", fontsize=8.5, zorder=4)
        mean = geometric_mean([ratio for _, ratio in cases])
        axes.annotate(f"{mean:.2f}x", (1, row), xycoords=("axes fraction", "data"), xytext=(8, 0),
                      textcoords="offset points", va="center", fontsize=9, fontweight="bold")  # fmt: skip
    if found:
        axes.annotate("mean", (1, 1), xycoords="axes fraction", xytext=(8, 6), textcoords="offset points",
                      va="center", fontsize=8.5, color=GREY)  # fmt: skip
    axes.set_xlabel("time of the best peer / time of opmux's choice (log; grey band: equal within 2 %)")


def _roofline(axes: Axes, report: Report) -> None:
    axes.set_title("Fraction of the roofline")
    axes.grid(visible=True, axis="both")
    axes.set_xscale("log")
    axes.axhline(1, color=GREY, linewidth=1.2, zorder=1)
    top = 1.1
    for case in report.cases:
        mine, mark = taken(case), CLASSES[shape_class(case)][1]
        if mine is None:
            continue
        peers = [c.fraction for c in case.contenders if c.kind == PEER]
        if peers:
            axes.scatter(case.least_us, max(peers), s=16, marker="x", color=GREY, linewidths=0.9, zorder=2)
        axes.scatter(case.least_us, mine.fraction, s=mark.size, marker=mark.shape, color=mark.colour,
                     alpha=0.8, linewidths=0.5, edgecolors="white", zorder=3)  # fmt: skip
        top = max(top, mine.fraction * 1.05, *(p * 1.05 for p in peers))
    axes.set_ylim(0, top)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xlabel("least time that the ceilings allow, us (log)")
    axes.set_ylabel("least time / measured time")
