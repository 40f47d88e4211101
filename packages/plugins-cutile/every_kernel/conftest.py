"""As the package's own tests, with their helpers."""

import os
import sys
from pathlib import Path

os.environ["OPMUX_PLUGINS"] = "cutile"
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
