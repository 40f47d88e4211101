"""A HIP library for machines without a GPU: ``libamdhip64.so``, whose one device is the emulator.

Programs, extensions and launchers that open or link the HIP runtime run unchanged: kernels are executed and judged on
the CPU, on the host's memory. :func:`environment` says what a process must have set; ``python -m opmux_emulator.hip``
runs a command with it; :class:`Runtime` calls the library from Python.
"""

from opmux_emulator.hip.library import environment, library
from opmux_emulator.hip.runtime import HipError, HipLibraryError, Runtime

__all__ = ["HipError", "HipLibraryError", "Runtime", "environment", "library"]
