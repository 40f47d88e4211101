"""Pictures of a run, drawn by matplotlib (extra ``plot``): one summary, and every contender of every case behind it.

Importing this package imports matplotlib.
"""

from opmux.bench.plots.contenders import contenders, marks_of
from opmux.bench.plots.style import svg_of
from opmux.bench.plots.summary import summary

__all__ = ["contenders", "marks_of", "summary", "svg_of"]
