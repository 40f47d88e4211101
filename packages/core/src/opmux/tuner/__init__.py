"""The tuner: measures every implementation in every config of its space, and writes the best of each as measured rows.

`tune` (also `opmux.tune`) measures, `merge` joins files of rows, `check` measures rows again. ``docs/users/tuning.md``
describes them.
"""

from opmux.tuner.merging import Merged, merge
from opmux.tuner.progress import Progress
from opmux.tuner.rechecking import Checked, Lapsed, check
from opmux.tuner.session import Tuned, tune

__all__ = ["Checked", "Lapsed", "Merged", "Progress", "Tuned", "check", "merge", "tune"]
