"""The kernels, each family a function of the arch that writes its assembly. Standard library only, as the writer."""

ARCHS = ("gfx942", "gfx950")
"""The archs that there are kernels for."""
