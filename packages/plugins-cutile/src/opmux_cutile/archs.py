"""What all kernels have in common: the archs that CUDA Tile's compiler makes code for, dtypes, and the priority."""

from opmux.plugin import Priority

BACKEND = "cutile"
ARCHS = ("sm_80+",)
WITHOUT_COPY_ENGINE = ("sm_80", "sm_86", "sm_87", "sm_88", "sm_89")
"""Ampere and Ada: threads copy the operands of products and of attention."""
FLOATS = ("bfloat16", "float16", "float32")
PRIORITY = Priority.PORTABLE - 1
"""Behind the Triton backend's where no times are known: where rows were measured, the times decide."""
UNPROVED = Priority.EXPERIMENTAL
"""Of records for archs on none of which a GPU has run them: taken only when asked for by their own name."""
