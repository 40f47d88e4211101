"""Writes the CUDA C++ source of a kernel for one product, out of its shape, its config and the files in `cuda`."""
