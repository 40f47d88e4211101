"""How the records rank, and the archs that they are for."""

from opmux.plugin import Priority
from opmux_asm.kernels import ARCHS

__all__ = ["ARCHS", "UNMEASURED"]

UNMEASURED = Priority.PORTABLE - 1
"""Behind portable kernels: these have run on an emulator only. A tuned record, measured on a GPU, ranks before it."""
