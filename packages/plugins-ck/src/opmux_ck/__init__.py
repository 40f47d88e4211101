"""Composable Kernel as an opmux backend: instances generated, compiled and chosen per shape."""

from opmux_ck.__about__ import __version__

__all__ = ["__version__"]
