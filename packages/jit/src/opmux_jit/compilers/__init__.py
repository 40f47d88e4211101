"""Compilers behind one interface: NVRTC in this process; nvcc, hipcc and clang as programs."""

from opmux_jit.compilers.choice import NAMES, choose, installed, likely_identity
from opmux_jit.compilers.compiler import Compiler, identity
from opmux_jit.compilers.source import Source

__all__ = ["NAMES", "Compiler", "Source", "choose", "identity", "installed", "likely_identity"]
