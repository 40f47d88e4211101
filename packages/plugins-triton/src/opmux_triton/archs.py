"""Which archs and dtypes the kernels are for. Records import this: it loads no Triton."""

PORTABLE = ("sm_80+", "gfx908", "gfx90a", "gfx94*", "gfx95*", "gfx11*", "gfx12*")
"""NVIDIA from Ampere on, AMD's CDNA and RDNA3 and later: what has matrix instructions."""

HALVES = ("bfloat16", "float16")
FLOATS = (*HALVES, "float32")
HOPPER = ("sm_90",)
"""The arch of the Gluon implementations, which use its own instructions: all are named ``hopper``."""
