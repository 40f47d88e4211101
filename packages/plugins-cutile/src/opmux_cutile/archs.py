"""What all kernels have in common: the archs that CUDA Tile's compiler makes code for, dtypes, and the priority."""

from opmux.plugin import Priority

BACKEND = "cutile"
ARCHS = ("sm_80+",)
FLOATS = ("bfloat16", "float16", "float32")
PRIORITY = Priority.PORTABLE - 1
"""Behind the Triton backend's where no times are known: where rows were measured, the times decide."""
