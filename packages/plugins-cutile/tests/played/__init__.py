"""Kernels in cuda.tile Python, played on the CPU: the same source, with functions of torch in the language's place."""
