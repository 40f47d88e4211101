"""Tensor maps, the descriptors that TMA copies by (CUDA driver API, "Tensor Map Object Management")."""

import enum
from collections.abc import Sequence

import torch

from opmux.plugin import InvalidArgument
from opmux_jit.errors import LoadFailed
from opmux_jit.launching.devices import device
from opmux_jit.native.library import launcher

DTYPES = {
    torch.uint8: 0, torch.int8: 0, torch.bool: 0, torch.float8_e4m3fn: 0, torch.float8_e5m2: 0,
    torch.uint16: 1, torch.uint32: 2, torch.int32: 3, torch.uint64: 4, torch.int64: 5,
    torch.float16: 6, torch.float32: 7, torch.float64: 8, torch.bfloat16: 9,
}  # fmt: skip
"""``CUtensorMapDataType``; types of one byte are copied as uint8."""


class Swizzle(enum.IntEnum):
    """How rows are permuted in shared memory, by the width in bytes of the pattern."""

    NONE = 0
    BYTES_32 = 1
    BYTES_64 = 2
    BYTES_128 = 3


class Promotion(enum.IntEnum):
    """The size in bytes to which L2 requests are widened."""

    NONE = 0
    BYTES_64 = 1
    BYTES_128 = 2
    BYTES_256 = 3


class Fill(enum.IntEnum):
    """What elements outside the tensor read as."""

    ZERO = 0
    NAN = 1


def tensor_map(
    tensor: torch.Tensor,
    box: Sequence[int],
    *,
    swizzle: Swizzle = Swizzle.NONE,
    promotion: Promotion = Promotion.BYTES_128,
    fill: Fill = Fill.ZERO,
) -> bytes:
    """The tensor map of a tensor, for an argument of kind ``m``; valid as long as the tensor's memory is its own.

    Args:
        tensor: up to 5 dims, the last with stride 1, the other strides and the address multiples of 16 bytes.
        box: the elements that one copy moves, a size for each dim, as many as the tensor has dims; at most 256 each.
        swizzle, promotion, fill: see the classes.

    Returns:
        128 bytes.

    Raises:
        InvalidArgument: where the tensor or the box cannot be copied so.
        LoadFailed: where the driver refuses it or is too old for it.
    """
    if tensor.dtype not in DTYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise InvalidArgument(f"tensor_map: `tensor` expected a dtype of {known}, got {tensor.dtype}; view it as one")
    size = tensor.element_size()
    strides = [stride * size for stride in tensor.stride()]
    if not 1 <= tensor.dim() <= 5 or tensor.stride(-1) != 1:
        got = f"strides {tuple(tensor.stride())}"
        raise InvalidArgument(f"tensor_map: `tensor` expected 1 to 5 dims, the last of stride 1, got {got}; copy it")
    if any(stride % 16 for stride in strides[:-1]) or tensor.data_ptr() % 16:
        got = f"strides of {strides[:-1]} bytes at address {tensor.data_ptr():#x}"
        raise InvalidArgument(f"tensor_map: `tensor` expected multiples of 16 bytes, got {got}; pad its rows")
    if len(box) != tensor.dim() or any(not 1 <= n <= 256 for n in box):
        raise InvalidArgument(
            f"tensor_map: `box` expected {tensor.dim()} sizes from 1 to 256, got {tuple(box)}; give one for each dim"
        )
    native, where = launcher(), device(tensor.get_device())
    # The driver counts dims from the innermost one.
    try:
        made: bytes = native.tensor_map(
            where.driver, where.index, DTYPES[tensor.dtype], tensor.data_ptr(), list(tensor.shape)[::-1],
            strides[-2::-1], list(box)[::-1], [1] * tensor.dim(), 0, int(swizzle), int(promotion), int(fill),
        )  # fmt: skip
    except native.DriverError as error:
        raise LoadFailed(f"tensor_map: {error.args[0]} (box {tuple(box)}, {swizzle!s})") from None
    return made
