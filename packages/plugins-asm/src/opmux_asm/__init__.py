"""Kernels for gfx942 and gfx950 in assembly, written by a small kernel writer, as an opmux backend.

A wheel holds their code objects, each beside its source, under a manifest of checksums.
"""

from opmux_asm.__about__ import __version__ as __version__
