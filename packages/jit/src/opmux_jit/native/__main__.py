"""``python -m opmux_jit.native``: builds the launcher if it is not there, and prints where it is."""

import sys

from opmux_jit.native.library import path_of_launcher

sys.stdout.write(f"{path_of_launcher()}\n")
