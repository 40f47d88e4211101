"""What the core calls to convert scales."""

import torch
from torch import Tensor
from triton.runtime.jit import TensorWrapper

from opmux_triton.launch import as_bytes, launch
from opmux_triton.quantization import scale_kernels as kernels
from opmux_triton.repeats import kept, repeated

_ROWS, _COLUMNS, _WARPS = 64, 32, 4
"""The tile of a program, which is read along one dim and may be written along the other."""

_TMA_BYTES = 16


def convert_scale(scale: Tensor, *, dtype: torch.dtype, scale_major: str) -> Tensor:
    """The op `convert_scale`."""
    *batch, rows, columns = scale.shape
    transposed = scale_major == "m"
    each = _TMA_BYTES // dtype.itemsize
    padded = -(-rows // each) * each if transposed else rows
    memory = scale.new_empty((*batch, columns, padded) if transposed else scale.shape, dtype=dtype)
    out = memory.mT.narrow(-2, 0, rows) if transposed else memory
    if not out.numel():
        return out
    key = ("convert_scale", scale.shape, dtype, scale_major)
    if repeated(key, (scale,), (memory,)):
        return out
    with kept(key, (scale,), (memory,), None):
        # Leading dims that do not fold are copied, which a kept call may not do: it has the scales in one piece.
        given = scale.reshape(-1, rows, columns)
        tiles = (len(given) * -(-padded // _ROWS), -(-columns // _COLUMNS))
        arguments = (_bits(given), _bits(memory), rows, columns, padded, *given.stride())
        meta = {
            "FROM_CODES": scale.dtype == torch.float8_e8m0fnu, "TO_CODES": dtype == torch.float8_e8m0fnu,
            "TRANSPOSED": transposed, "ROWS": _ROWS, "COLUMNS": _COLUMNS, "num_warps": _WARPS,
        }  # fmt: skip
        launch(kernels.convert_scale, tiles, arguments, meta)
    return out


def _bits(scale: Tensor) -> Tensor | TensorWrapper:
    """Scales as integers of their size."""
    return as_bytes(scale) if scale.element_size() == 1 else scale.view(torch.int32)
