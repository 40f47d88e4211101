"""What constraints ask of a tensor's memory."""

from typing import Any

from torch import Tensor


def aligned(tensor: Tensor, alignment: int) -> bool:
    """Whether the address and every stride but a unit one are multiples of ``alignment`` bytes."""
    if tensor.data_ptr() % alignment:
        return False
    size, shape = tensor.element_size(), tensor.shape  # an index of it costs a quarter of what `size(-1)` does
    if shape and not shape[-1] * size % alignment and tensor.is_contiguous():
        return True  # all other strides are multiples of the last size: no loop at most calls
    for place, stride in enumerate(tensor.stride()):  # in full, as this may be asked at every call
        if stride * size % alignment and stride != 1 and shape[place] > 1:
            return False
    return True


def span(tensor: Tensor) -> int:
    """The number of elements from the first to the last, gaps between strides included."""
    numel = tensor.numel()
    if numel == 0 or tensor.is_contiguous():
        return numel
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def has_blocks(tensor: Tensor, scale: Any, block: tuple[int, ...]) -> bool:
    """Whether ``scale`` holds one value per ``block`` of ``tensor``; -1 is the whole dim."""
    if scale is None or scale.dim() != tensor.dim() or tensor.dim() < len(block):
        return False
    trailing = tensor.shape[tensor.dim() - len(block) :]
    expected = [min(n, 1) if b == -1 else -(-n // b) for n, b in zip(trailing, block, strict=True)]
    return list(scale.shape[scale.dim() - len(block) :]) == expected
