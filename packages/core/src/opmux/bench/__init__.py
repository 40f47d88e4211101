"""Benchmarks: implementations of an op timed side by side with the available peers, in interleaved rounds of one run.

Nothing here asserts a time. `run` returns plain data; `opmux bench` displays it.
"""

from opmux.bench.results import CaseResult, Ceilings, Contender, Left, Report
from opmux.bench.runner import Progress, Settings, run

__all__ = ["CaseResult", "Ceilings", "Contender", "Left", "Progress", "Report", "Settings", "run"]
