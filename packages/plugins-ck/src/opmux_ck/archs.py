"""What the records share."""

from opmux.plugin import Priority

ARCHS = ("gfx942", "gfx950")
FP8 = {"gfx942": "float8_e4m3fnuz", "gfx950": "float8_e4m3fn"}
"""By arch, the flavour of fp8 that its instructions know."""
UNMEASURED = Priority.PORTABLE - 1
"""Behind portable kernels: these have run on an emulator only. A tuned record, measured on a GPU, ranks before it."""
NAMED = "opmux_ck.building.calls:names_of"
"""What names the instances that a target launches."""
