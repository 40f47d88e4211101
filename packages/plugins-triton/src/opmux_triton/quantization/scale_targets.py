"""What the core calls to convert, pack and unpack scales."""

from typing import Any

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
    from_codes, to_codes = (given == torch.float8_e8m0fnu for given in (scale.dtype, dtype))
    out, memory = _results(scale, scale.shape[-1], dtype, scale_major)
    flags = {"FROM_CODES": from_codes, "TO_CODES": to_codes}
    return _run("convert_scale", kernels.convert_scale, scale, out, memory, flags)


def pack_scale(scale: Tensor, *, scale_major: str) -> Tensor:
    """The op `pack_scale`."""
    blocks = scale.shape[-1]
    out, memory = _results(scale, -(-blocks // 4), torch.int32, scale_major)
    flags = {"FROM_CODES": scale.dtype == torch.float8_e8m0fnu}
    return _run("pack_scale", kernels.pack_scale, scale, out, memory, flags, blocks)


def unpack_scale(packed: Tensor, *, k_blocks: int, dtype: torch.dtype, scale_major: str) -> Tensor:
    """The op `unpack_scale`."""
    out, memory = _results(packed, k_blocks, dtype, scale_major)
    flags = {"TO_CODES": dtype == torch.float8_e8m0fnu}
    return _run("unpack_scale", kernels.unpack_scale, packed, out, memory, flags)


def _results(given: Tensor, columns: int, dtype: torch.dtype, scale_major: str) -> tuple[Tensor, Tensor]:
    """An op's result with this many columns, and the memory that it lies in, whose padding is written too."""
    *batch, rows, _ = given.shape
    if scale_major == "k":
        out = given.new_empty((*batch, rows, columns), dtype=dtype)
        return out, out
    each = _TMA_BYTES // dtype.itemsize
    memory = given.new_empty((*batch, columns, -(-rows // each) * each), dtype=dtype)
    return memory.mT.narrow(-2, 0, rows), memory


def _run(
    op: str, kernel: Any, given: Tensor, out: Tensor, memory: Tensor, flags: dict[str, bool], *sizes: int
) -> Tensor:
    """Launch a kernel, or launch it again as it was; ``sizes`` come between its rows and its columns."""
    if not out.numel():
        return out
    key = (op, given.shape, out.shape, out.dtype, out is memory)
    if repeated(key, (given,), (memory,)):
        return out
    with kept(key, (given,), (memory,), None):
        # Leading dims that do not fold are copied, which a kept call may not do: it has the scales in one piece.
        whole = given.reshape(-1, *given.shape[-2:])
        rows, columns = out.shape[-2:]
        padded = rows if out is memory else memory.shape[-1]
        tiles = (len(whole) * -(-padded // _ROWS), -(-columns // _COLUMNS))
        arguments = (_bits(whole), _bits(memory), rows, *sizes, columns, padded, *whole.stride())
        meta = {
            **flags, "TRANSPOSED": out is not memory, "ROWS": _ROWS, "COLUMNS": _COLUMNS, "num_warps": _WARPS,
        }  # fmt: skip
        launch(kernel, tiles, arguments, meta)
    return out


def _bits(scale: Tensor) -> Tensor | TensorWrapper:
    """Scales as integers of their size."""
    return as_bytes(scale) if scale.element_size() == 1 else scale.view(torch.int32)
