"""One product of two operands, launched as a config says."""

from typing import Any

from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from opmux_triton.devices import units
from opmux_triton.gemm import descriptor_kernels, kernels
from opmux_triton.gemm.configs import TilesConfig
from opmux_triton.gemm.cuts import even_shares, rest_of, shares_of
from opmux_triton.gemm.operands import Operand
from opmux_triton.gemm.shares import sum_shares
from opmux_triton.interpreter import INTERPRETED
from opmux_triton.launch import launch
from opmux_triton.repeats import scratch


def product(
    a: Operand, b: Operand, bias: Tensor | None, out: Tensor, sizes: tuple[int, int, int], c: TilesConfig
) -> None:
    """Write ``out[m, n] = a @ b (+ bias)``, summed over k.

    Args:
        a: the operand of m.
        b: the operand of n.
        bias: along n, or None.
        out: contiguous; m rows of n.
        sizes: (m, n, k), m and n at least 1.
        c: the config; ``swap`` computes the transposed product, for an m far smaller than n.
    """
    a, b = a.along_memory, b.along_memory
    m, n, k = sizes
    row, col = n, 1
    if c.swap:
        a, b, m, n, row, col = b, a, n, m, 1, n
    descriptors = c.tma and k > 0 and a.tensor.element_size() == 2 and a.fits_descriptor and b.fits_descriptor
    if c.tma and not descriptors:
        c = c.changed(c.otherwise)
    if not descriptors and (k % c.block_k != 0 or a.is_folded or b.is_folded):
        c = c.changed(c.uneven)
    tiles = -(-m // c.block_m) * -(-n // c.block_n)  # of the tile that is really used
    if c.kind == "shares" and k > 0:
        blocks, slots = -(-k // c.block_k), c.per_unit * units(out)
        cut = shares_of(tiles, blocks, slots)
        _shares(a, b, bias, out, (m, n, k), (row, col), (0, tiles), cut, descriptors, c)
    elif descriptors:
        _by_descriptors(a, b, bias, out, (m, n, k), (row, col), tiles, c)
    else:
        meta = {
            **_forms(a, b, k, c),
            "HAS_BIAS": bias is not None,
            "SWAPPED": c.swap,
            **_blocks(c),
            "XCDS": c.xcds,
            "UPCAST": _upcast(a.tensor),
        }
        arguments = (a.tensor, b.tensor, out, bias, m, n, k, *_strides(a), *_strides(b), row, col)
        launch(kernels.tiles, (tiles,), arguments, meta | c.compiler_options())


def _by_descriptors(
    a: Operand, b: Operand, bias: Tensor | None, out: Tensor, sizes: tuple[int, int, int], strides: tuple[int, int],
    tiles: int, c: TilesConfig,
) -> None:  # fmt: skip
    m, n, k = sizes
    block_m, block_n, block_k, parts = c.block_m, c.block_n, c.block_k, c.parts
    width = out.shape[-1]
    store: Any = out
    by_descriptor = c.store == "descriptor" and width * out.element_size() % 16 == 0
    if by_descriptor:
        block = [block_n // parts, block_m] if c.swap else [block_m, block_n // parts]
        store = TensorDescriptor(out, [n, m] if c.swap else [m, n], [width, 1], block)
    meta = {
        "A_ROWS_ARE_K": a.rows_are_k,
        "B_ROWS_ARE_K": b.rows_are_k,
        "HAS_BIAS": bias is not None,
        "SWAPPED": c.swap,
        "STORE": "descriptor" if by_descriptor else "pointers",
        **_blocks(c),
        "PARTS": parts,
        "FLATTEN": c.flatten,
    }
    slots = c.per_unit * units(out)
    blocks = -(-k // block_k)
    rest = rest_of(tiles, blocks, slots) if c.cut_rest else 0
    whole = tiles - rest
    cut = even_shares(rest, blocks, slots) if rest else (0, 0)
    if whole == 0:
        _shares(a, b, bias, out, sizes, strides, (0, tiles), cut, True, c)
        return
    a_blocks, b_blocks = _descriptor(a, block_m, block_k), _descriptor(b, block_n, block_k)
    launch(
        descriptor_kernels.tiles,
        (min(whole, slots),),
        (a_blocks, b_blocks, store, bias, m, n, k, whole, *strides),
        meta | c.compiler_options(),
    )
    if whole < tiles:
        _shares(a, b, bias, out, sizes, strides, (whole, tiles - whole), cut, True, c)


def _shares(
    a: Operand, b: Operand, bias: Tensor | None, out: Tensor, sizes: tuple[int, int, int], strides: tuple[int, int],
    which: tuple[int, int], cut: tuple[int, int], descriptors: bool, c: TilesConfig,
) -> None:  # fmt: skip
    """Tiles from a first one on, cut as `shares_of` says."""
    m, n, k = sizes
    first, tiles = which
    share, length = cut
    block_m, block_n, block_k = c.block_m, c.block_n, c.block_k
    programs = -(-tiles * length // share)
    partial = scratch(((programs + tiles) * block_m * block_n,), out)
    if descriptors:
        forms = {"A_ROWS_ARE_K": a.rows_are_k, "B_ROWS_ARE_K": b.rows_are_k, **_blocks(c), "FLATTEN": c.flatten}
        operands = (_descriptor(a, block_m, block_k), _descriptor(b, block_n, block_k))
        arguments: tuple[Any, ...] = (*operands, partial, m, n, k, first, share, length)
        launch(descriptor_kernels.shares, (programs,), arguments, forms | c.compiler_options())
    else:
        meta = {**_forms(a, b, k, c), **_blocks(c), "UPCAST": _upcast(a.tensor)}
        arguments = (a.tensor, b.tensor, partial, m, n, k, share, length, *_strides(a), *_strides(b))
        launch(kernels.shares, (programs,), arguments, meta | c.compiler_options())
    sum_shares(partial, out, bias, (m, n), which, cut, c)


def _descriptor(operand: Operand, block: int, block_k: int) -> TensorDescriptor:
    return TensorDescriptor(operand.tensor, *operand.described(block, block_k))


def _strides(operand: Operand) -> tuple[int, int, int, int]:
    return operand.inner, operand.outer, operand.row, operand.col


def _forms(a: Operand, b: Operand, k: int, c: TilesConfig) -> dict[str, Any]:
    return {
        "A_ROWS_ARE_K": a.rows_are_k,
        "B_ROWS_ARE_K": b.rows_are_k,
        "A_FOLDED": a.is_folded,
        "B_FOLDED": b.is_folded,
        "EVEN_K": k % c.block_k == 0,
    }


def _blocks(c: TilesConfig) -> dict[str, Any]:
    return {"BLOCK_M": c.block_m, "BLOCK_N": c.block_n, "BLOCK_K": c.block_k, "GROUP": c.group}


def _upcast(tensor: Tensor) -> bool:
    """Triton's interpreter multiplies bfloat16 wrongly: float32 there, which holds every 16-bit value."""
    return INTERPRETED and tensor.element_size() == 2
