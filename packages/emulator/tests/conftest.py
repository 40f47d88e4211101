"""What every test of the emulator starts from: its own folder for helpers."""

import os
import sys
from pathlib import Path

os.environ["OPMUX_PLUGINS"] = "triton,emulator"  # no other backend takes part

sys.path.insert(0, str(Path(__file__).parent))
