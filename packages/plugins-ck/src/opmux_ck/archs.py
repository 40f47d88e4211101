"""What the records share."""

from opmux.plugin import Priority

ARCHS = ("gfx942", "gfx950")
UNMEASURED = Priority.PORTABLE - 1
"""Behind portable kernels: these have run on an emulator only. A tuned record, measured on a GPU, ranks before it."""
