"""Tests that build real instances: they need Composable Kernel's sources and minutes of compiling.

The session `test-ck` runs them; CI does not. Instances are kept in the user's cache, so that a second run is quick.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from fetching import fetched

os.environ["OPMUX_PLUGINS"] = "ck"  # no other installed backend takes part
if "OPMUX_CK_DIR" not in os.environ:
    os.environ["OPMUX_CK_DIR"] = str(fetched())
