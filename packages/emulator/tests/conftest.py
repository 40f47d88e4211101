"""What every test of the emulator starts from: its own folder for helpers."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
