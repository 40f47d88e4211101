"""One product by the Gluon kernel for sm_90: descriptors, the order of work, the launch."""

from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from opmux_triton.devices import units
from opmux_triton.gemm import hopper_kernels, products
from opmux_triton.gemm.configs import HopperConfig, TilesConfig
from opmux_triton.gemm.cuts import even_shares, halves_of, rest_of
from opmux_triton.gemm.operands import Operand
from opmux_triton.gemm.shares import sum_shares
from opmux_triton.launch import launch
from opmux_triton.repeats import scratch

_REGISTERS = {1: (232, 168), 2: (240, 168), 3: (160, 128)}
"""Of a thread that multiplies, and of one on average, by the number of multiplying warpgroups."""


def fits(a: Operand, b: Operand, out: Tensor, k: int) -> bool:
    """Whether all three matrices have descriptors, in 16 bits."""
    size = out.element_size()
    return k > 0 and size == 2 and a.fits_descriptor and b.fits_descriptor and out.shape[-1] * size % 16 == 0


def product(
    a: Operand, b: Operand, bias: Tensor | None, out: Tensor, sizes: tuple[int, int, int],
    c: HopperConfig | TilesConfig,
) -> None:  # fmt: skip
    """Write ``out[m, n] = a @ b (+ bias)``; the arguments are those of `opmux_triton.gemm.products.product`.

    By the portable kernels where the config is theirs, or where an operand has no descriptor.
    """
    a, b = a.along_memory, b.along_memory
    if isinstance(c, TilesConfig):
        products.product(a, b, bias, out, sizes, c)
    elif fits(a, b, out, sizes[2]):
        m, n, k = sizes
        _product(*((b, a) if c.swap else (a, b)), bias, out, (n, m, k) if c.swap else sizes, c)
    else:
        products.product(a, b, bias, out, sizes, c.otherwise)


def _product(
    a: Operand, b: Operand, bias: Tensor | None, out: Tensor, sizes: tuple[int, int, int], c: HopperConfig
) -> None:
    """Launch the kernel; the operands, m and n are swapped already where the config says so."""
    m, n, k = sizes
    block_m, block_n, block_k = c.block_m, c.block_n, c.block_k
    tiles_m, tiles_n, blocks = -(-m // block_m), -(-n // block_n), -(-k // block_k)
    tiles, slots = tiles_m * tiles_n, units(out)
    rest = _rest(c, tiles, blocks, slots)
    whole = tiles - rest
    share, length = 0, 1
    if rest:
        share, length = even_shares(rest, blocks, slots)
    sharing = -(-rest * length // share) if rest else 0
    rows = block_m if c.alternate else block_m // c.warpgroups
    partial = scratch(((sharing + rest) * block_m * block_n,), out) if rest else None
    left, right = halves_of(block_n)
    width = left // c.parts
    computing, average = _REGISTERS[c.warpgroups]
    spin = max(1, blocks // (tiles_m if c.swap else tiles_n)) if c.spin else 0
    arguments = (
        _operand(a, rows, block_k), _operand(b, left, block_k), _operand(b, right, block_k) if right else None,
        _stored(out, m, n, rows, width, c), _stored(out, m, n, rows, right, c) if right else None, bias, partial,
        m, n, tiles_m, tiles_n, blocks, whole, rest, share, length, spin,
    )  # fmt: skip
    meta = {
        "A_ROWS_ARE_K": a.rows_are_k,
        "B_ROWS_ARE_K": b.rows_are_k,
        "HAS_BIAS": bias is not None,
        "SWAPPED": c.swap,
        "BLOCK_M": block_m,
        "BLOCK_N": left,
        "REST_N": right,
        "BLOCK_K": block_k,
        "GROUP": c.group,
        "STAGES": c.stages,
        "PARTS": c.parts,
        "SLOTS": c.slots,
        "WARPGROUPS": c.warpgroups,
        "ALTERNATE": c.alternate,
        "REGISTERS": computing,
        "num_warps": 4,
        "maxnreg": average,
    }
    launch(hopper_kernels.products, (min(slots, max(whole, sharing)),), arguments, meta)
    if partial is not None:
        sum_shares(partial, out, bias, (m, n), (whole, rest), (share, length), c)


def _rest(c: HopperConfig, tiles: int, blocks: int, slots: int) -> int:
    """How many tiles are cut along k: all only where each program has one part at most."""
    if c.cut == "none":
        return 0
    return tiles if c.cut == "all" and tiles <= slots else rest_of(tiles, blocks, slots)


def _stored(out: Tensor, m: int, n: int, rows: int, width: int, c: HopperConfig) -> TensorDescriptor:
    """The result as blocks of ``rows`` of m by ``width`` of n."""
    return _blocks(out, (n, m), [width, rows]) if c.swap else _blocks(out, (m, n), [rows, width])


def _operand(operand: Operand, block: int, block_k: int) -> TensorDescriptor:
    sizes, strides, shape = operand.described(block, block_k)
    return TensorDescriptor(operand.tensor, sizes, strides, shape, _layout(shape))


def _blocks(out: Tensor, sizes: tuple[int, int], shape: list[int]) -> TensorDescriptor:
    return TensorDescriptor(out, list(sizes), [sizes[1], 1], shape, _layout(shape))


def _layout(shape: list[int]) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout(swizzle_byte_width=min(128, shape[1] * 2), element_bitwidth=16, rank=2)
