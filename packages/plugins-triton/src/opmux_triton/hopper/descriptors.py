"""Tensor descriptors as Gluon kernels take them: with the layout of a block in shared memory."""

from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from opmux_triton.descriptors import descriptor_strides


def head_descriptor(x: Tensor, rows: int, columns: int | None = None) -> TensorDescriptor:
    """A descriptor of blocks of one head of a 16-bit tensor ``(batch, seq, heads, dim)``.

    Args:
        x: see `opmux_triton.descriptors.has_descriptor`.
        rows: rows of a block.
        columns: columns of a block, a power of two from 16 on; all of them by default.
    """
    width = x.shape[3] if columns is None else columns
    # A row of a block in shared memory is one span of the swizzle, or several of the widest.
    layout = gl.NVMMASharedLayout(swizzle_byte_width=min(128, 2 * width), element_bitwidth=16, rank=4)
    return TensorDescriptor(x, list(x.shape), descriptor_strides(x), [1, rows, 1, width], layout)
