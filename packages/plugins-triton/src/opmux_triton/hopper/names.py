"""Functions of Gluon whose names differ between versions of Triton."""

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

load_block = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
"""Fills a block of shared memory through a descriptor; a barrier signals its arrival."""
store_block = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
"""Writes a block of shared memory through a descriptor."""
synchronize = getattr(gl, "thread_barrier", None) or gl.barrier
"""Makes the warps of a role wait for one another."""
