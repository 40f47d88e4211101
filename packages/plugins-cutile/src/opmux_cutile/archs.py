"""What all kernels have in common: the archs that CUDA Tile's compiler makes code for, and dtypes."""

BACKEND = "cutile"
ARCHS = ("sm_80+",)
FLOATS = ("bfloat16", "float16", "float32")
