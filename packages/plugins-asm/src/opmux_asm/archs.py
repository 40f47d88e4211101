"""How the records rank, and the archs that they are for."""

from opmux.plugin import Priority
from opmux_asm.kernels import ARCHS

__all__ = ["ARCHS", "FP8", "UNMEASURED"]

UNMEASURED = Priority.PORTABLE - 1
"""Behind portable kernels: these have run on an emulator only. A tuned record, measured on a GPU, ranks before it."""

FP8 = {"gfx942": ("fnuz", "float8_e4m3fnuz"), "gfx950": ("ocp", "float8_e4m3fn")}
"""The flavour of fp8 that an arch's instructions know: the name of its records, and torch's dtype."""
