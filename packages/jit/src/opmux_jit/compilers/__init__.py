"""Compilers behind one interface: NVRTC in this process; nvcc, hipcc, clang and Zig's clang as programs."""

from opmux_jit.compilers.choice import NAMES, choose, find, installed, likely_identity
from opmux_jit.compilers.compiler import Compiler, identity
from opmux_jit.compilers.source import Source

__all__ = ["NAMES", "Compiler", "Source", "choose", "find", "identity", "installed", "likely_identity"]
