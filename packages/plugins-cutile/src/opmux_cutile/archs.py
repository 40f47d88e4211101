"""The archs that CUDA Tile's compiler makes code for."""

BACKEND = "cutile"
ARCHS = ("sm_80+",)
