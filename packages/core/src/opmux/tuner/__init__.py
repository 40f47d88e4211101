"""The tuner: measures every implementation in every config of its space, and writes the best of each as measured rows.

`tune` (also `opmux.tune`) measures. ``docs/users/tuning.md`` describes it.
"""

from opmux.tuner.session import Progress, Tuned, tune

__all__ = ["Progress", "Tuned", "tune"]
