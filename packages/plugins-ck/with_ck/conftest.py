"""Tests that build real instances: they need Composable Kernel's sources and minutes of compiling.

The session `test-ck` runs them all, `ci-ck` those of `test_covering.py` alone. Instances are kept in the
user's cache, so that a second run is quick.
"""

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from building import seconds
from fetching import fetched

os.environ["OPMUX_PLUGINS"] = "ck"  # no other installed backend takes part
if "OPMUX_CK_DIR" not in os.environ:
    os.environ["OPMUX_CK_DIR"] = str(fetched())


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """How many instances the tests looked at, and what compiling them takes."""
    total = sum(seconds.values())
    terminalreporter.write_line(f"{len(seconds)} instances, {total:.0f} s of compiling; the slowest:")
    for name in sorted(seconds, key=seconds.__getitem__)[-3:][::-1]:
        terminalreporter.write_line(f"  {name}: {seconds[name]:.1f} s")
