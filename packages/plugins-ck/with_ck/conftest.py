"""Tests that build real instances: they need Composable Kernel's sources and minutes of compiling.

The session `test-ck` runs them all, `ci-ck` those of `test_covering.py` alone. Instances are kept in the
user's cache, so that a second run is quick.
"""

import collections
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from building import occupancies, seconds
from fetching import fetched

os.environ["OPMUX_PLUGINS"] = "ck"  # no other installed backend takes part
if "OPMUX_CK_DIR" not in os.environ:
    os.environ["OPMUX_CK_DIR"] = str(fetched())


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """How many instances the tests looked at, what compiling them takes, and how many workgroups a unit holds."""
    total = sum(seconds.values())
    terminalreporter.write_line(f"{len(seconds)} instances, {total:.0f} s of compiling; the slowest:")
    for name in sorted(seconds, key=seconds.__getitem__)[-3:][::-1]:
        terminalreporter.write_line(f"  {name}: {seconds[name]:.1f} s")
    counts = collections.Counter(occupancies.values())
    held = ", ".join(f"{held} of {counts[held]} instances" for held in sorted(counts))
    terminalreporter.write_line(f"workgroups that a compute unit holds: {held or 'not looked at'}")
