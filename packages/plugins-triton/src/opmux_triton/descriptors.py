"""Tensor descriptors of tensors ``(batch, seq, heads, dim)``, or ``(page, slot, kv_heads, dim)``, made on the host."""

from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

ALIGNMENT = 16
"""Bytes that a descriptor's address and strides must be multiples of."""


def has_descriptor(x: Tensor) -> bool:
    """Whether the tensor can be read through a tensor descriptor."""
    size = x.element_size()
    aligned = x.data_ptr() % ALIGNMENT == 0 and x.numel() > 0 and x.stride(3) == 1
    return aligned and all(
        n == 1 or (s > 0 and s * size % ALIGNMENT == 0) for n, s in zip(x.shape[:3], x.stride()[:3], strict=True)
    )


def descriptor_strides(x: Tensor) -> list[int]:
    """The tensor's strides; a dim of size 1, whose stride is irrelevant, gets one that descriptors accept."""
    return [*(16 if n == 1 else s for n, s in zip(x.shape[:3], x.stride()[:3], strict=True)), 1]


def descriptor(x: Tensor, block: list[int]) -> TensorDescriptor:
    """A descriptor of blocks of this shape; it is passed to the launch by value."""
    return TensorDescriptor(x, list(x.shape), descriptor_strides(x), block)
