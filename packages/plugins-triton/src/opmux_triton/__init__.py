"""opmux's Triton backend: portable kernels for NVIDIA and AMD GPUs.

Nothing here is called by users: `opmux_triton.plugin` tells the core what there is, and the core imports a target when
it first chooses it. Each family of ops is a folder: ``kernels`` (the device code), ``targets`` (what the core calls:
shapes, scratch, the launch), ``configs`` (which launch parameters an arch gets) and ``implementations`` (the records).
"""

from opmux_triton.__about__ import __version__

__all__ = ["__version__"]
