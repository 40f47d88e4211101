"""The demo: a small Llama, trained on text and served through a paged cache, with every operator an opmux op.

`run` does all of it and returns plain data; it draws nothing itself.
"""

from opmux.demo.pipeline import DemoSettings, Progress, run
from opmux.demo.report import DemoResult

__all__ = ["DemoResult", "DemoSettings", "Progress", "run"]
