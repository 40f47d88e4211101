"""One scaled product by the portable kernel, launched as a config says."""

from dataclasses import replace
from typing import Any

from torch import Tensor

from opmux.dtypes import name_of
from opmux_triton.launch import as_bytes, launch
from opmux_triton.repeats import scratch
from opmux_triton.scaled_gemm import kernels
from opmux_triton.scaled_gemm.configs import ScaledConfig
from opmux_triton.scaled_gemm.operands import codes_of, scales_of, weight_scales

_EXACT = (1 << 31) // (128 * 128) - 1
"""Columns whose products of int8 have a sum that int32 holds."""
_VECTOR = 16
"""Codes that a thread reads at a time."""
_SUMMED = 1024
"""Values that a program of the kernel adds up which sums up the parts."""


def product(
    x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None, out: Tensor, added: bool,
    config: ScaledConfig,
) -> None:  # fmt: skip
    """Write the scaled product of x and w to out, which is not empty, or add it to what is there.

    Args:
        x, w, x_scale, w_scale, bias: as `opmux.scaled_linear` has them; x and w have unit strides in their last dim.
        out: rows one behind the other; with ``added`` a matrix in any strides.
        added: whether the product is added.
        config: the launch parameters.
    """
    n, k = w.shape
    m = out.numel() // n
    strides = (out.stride(0), out.stride(1)) if added else (n, 1)
    if k % _VECTOR or w.stride(0) % _VECTOR or any(stride % _VECTOR for stride in x.stride()[:-1]):
        config = replace(config, block_k=config.uneven)
    blocks = -(-k // config.block_k)
    each = -(-blocks // min(config.parts, blocks))
    parts = -(-blocks // each)
    if parts == 1:
        _tiles(x, w, x_scale, w_scale, bias, out, (m, n, k), each, parts, strides, added, config)
        return
    partial = scratch((parts, m, n), out)
    _tiles(x, w, x_scale, w_scale, None, partial, (m, n, k), each, parts, (n, 1), False, config)
    meta = {"HAS_BIAS": bias is not None, "ADDED": added, "BLOCK": _SUMMED, "num_warps": 4}
    launch(kernels.sum_parts, (-(-m * n // _SUMMED),), (partial, out, bias, parts, m, n, *strides), meta)


def _tiles(
    x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None, out: Tensor,
    sizes: tuple[int, int, int], each: int, parts: int, strides: tuple[int, int], added: bool, c: ScaledConfig,
) -> None:  # fmt: skip
    m, n, k = sizes
    rows, scales = codes_of(x), scales_of(x_scale, x.shape[-2])
    side, *weight_strides = weight_scales(w_scale, n)
    form = name_of(x.dtype)
    meta: dict[str, Any] = {
        "FORMAT": form,
        "X_FOLDED": rows.is_folded,
        "XS_FOLDED": scales.is_folded,
        "W_SIDE": side,
        "BLOCKWISE": x_scale.shape[-1] > 1,
        "PROMOTE": form != "int8" or k > _EXACT,
        "EVEN_K": k % c.block_k == 0,
        "SWAPPED": c.swap,
        "HAS_BIAS": bias is not None,
        "ADDED": added,
        "BLOCK_M": c.block_m,
        "BLOCK_N": c.block_n,
        "BLOCK_K": c.block_k,
        "GROUP": c.group,
        "XCDS": c.xcds,
    }
    arguments = (
        as_bytes(rows.tensor), as_bytes(w), scales.tensor, w_scale, out, bias, m, n, k, each,
        rows.inner, rows.outer, rows.row, w.stride(0), *scales.strides, *weight_strides, *strides,
    )  # fmt: skip
    tiles = -(-m // c.block_m) * -(-n // c.block_n)
    launch(kernels.scaled_tiles, (tiles, parts), arguments, meta | c.compiler_options())
