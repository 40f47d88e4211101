"""Matrix products for Hopper GPUs: CUDA C++ written for the shapes of a call and compiled when it is first made."""

from opmux_deepgemm.__about__ import __version__ as __version__
