"""One look for all pictures: fonts, colours that colour-blind readers can tell apart, reproducible SVG."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

# Okabe and Ito, "Color Universal Design" (2008).
BLUE, SKY, ORANGE, VERMILION, GREEN, PURPLE = "#0072B2", "#56B4E9", "#E69F00", "#D55E00", "#009E73", "#CC79A7"
TEXT, GREY, GRID = "#24292f", "#7a828c", "#e3e6ea"

RC: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"],
    "font.size": 9.5,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": TEXT,
    "axes.titlecolor": TEXT,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "x",
    "grid.color": GRID,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
    "ytick.major.size": 0,
    "text.color": TEXT,
    "legend.frameon": False,
    "legend.handletextpad": 0.3,
    "legend.columnspacing": 1.4,
    "figure.facecolor": "white",
    "svg.fonttype": "none",
    "svg.hashsalt": "opmux",
}


@dataclass(frozen=True)
class Mark:
    """The appearance of one kind of point: colour and shape, so that neither alone carries the meaning."""

    colour: str
    shape: str
    size: float = 30.0
    """Area in square points."""

    def line(self, *, filled: bool) -> dict[str, Any]:
        """The arguments of a plotted point: filled with a white rim, or hollow."""
        fill = {"markerfacecolor": self.colour, "markeredgecolor": "white", "markeredgewidth": 0.6}
        hollow = {"markerfacecolor": "none", "markeredgecolor": self.colour, "markeredgewidth": 1.2}
        return {"linestyle": "", "marker": self.shape, "markersize": self.size**0.5, **(fill if filled else hollow)}


@contextmanager
def styled() -> Iterator[None]:
    """Draw in this style; the caller's settings are restored at the end."""
    with mpl.rc_context(RC):
        yield


def svg_of(figure: Figure) -> str:
    """The figure as SVG: the same text for the same data and the same matplotlib."""
    text = StringIO()
    with styled():
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


_WIDE = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_NARROW = (0.2, 0.3, 0.5, 0.6, 0.7, 0.85, 1, 1.25, 1.5, 2, 3, 4, 6)


def speedup_axis(axes: Axes, low: float, high: float) -> None:
    """A logarithmic axis of speedups with round ticks, and the band that counts as equal."""
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    ticks = [tick for tick in (_WIDE if high / low > 12 else _NARROW) if low <= tick <= high]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    axes.axvspan(1 / 1.02, 1.02, color=GRID, zorder=0)
    axes.axvline(1, color=GREY, linewidth=1, zorder=1)


def rows_axis(axes: Axes, labels: Sequence[str]) -> None:
    """One row for each label, from the top down, with thin lines between them."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    for row in range(1, len(labels)):
        axes.axhline(row - 0.5, color=GRID, linewidth=0.6, zorder=0)


def figure(width: float, height: float) -> Figure:
    """An empty figure of this many inches that fits its contents."""
    return Figure(figsize=(width, height), layout="constrained")
