"""Cubins in the wheel: which kernels, and how they are compiled when it is built."""
