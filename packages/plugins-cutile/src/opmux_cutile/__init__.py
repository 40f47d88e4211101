"""CUDA Tile kernels: compiled ahead or at first use, launched without NVIDIA's Python package or toolkit."""

from opmux_cutile.__about__ import __version__ as __version__
