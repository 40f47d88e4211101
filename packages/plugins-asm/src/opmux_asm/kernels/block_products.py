"""`scaled_linear` with scales of blocks: 1x128 of x with 128x128 of w, in fp8.

The sums of a block of k are scaled and added to totals in float32, so that the matrix unit never sums more than 128
products. This happens beside the first matrix instructions of the next block: a tile starts from 0 again as soon as its
sums have been added.
"""

from functools import partial

from opmux_asm.kernels.interleaving import Step
from opmux_asm.kernels.operands import Operands
from opmux_asm.kernels.product_places import ARGUMENTS, SIDE
from opmux_asm.kernels.products import Product
from opmux_asm.kernels.rope import advance
from opmux_asm.kernels.rows import raw_buffer
from opmux_asm.kernels.softmax import pairs
from opmux_asm.writer import Argument, Kernel, Register

FAMILY = "scaled_linear_blocks"
TILES = ((128, 128), (64, 128), (64, 64))
"""Rows of x and of w of a workgroup: a wave's rows of w lie in one block, and totals have registers of their own."""
BLOCK = 128
STRIDES = ("x_scale_row", "x_scale_block", "w_scale_row", "w_scale_block")


def operands(arch: str) -> list[Operands]:
    """The dtypes of the family."""
    return [Operands(arch, "fp8", result) for result in ("bf16", "f16", "f32")]


def name_of(given: Operands, rows: int, columns: int) -> str:
    """A kernel's name."""
    return f"{FAMILY}_{given.name}_{rows}x{columns}"


def kernels(arch: str) -> list[Kernel]:
    """Every kernel of the family."""
    return [BlockProduct(name_of(given, *tile), given, *tile).write() for given in operands(arch) for tile in TILES]


class BlockProduct(Product):
    """Writes one kernel."""

    arguments = (*ARGUMENTS, *(Argument(name, "I") for name in STRIDES))

    @property
    def is_scaled(self) -> bool:
        return False  # block by block

    def take(self, value: Register, total: Register) -> None:
        self.k.v_mov_b32(value, total)

    def clear(self) -> None:
        """Sums of a block, totals, and factors, all 0; where this wave's scales are."""
        k, given = self.k, self.given
        count = 16 * self.i_tiles * self.j_tiles
        self.sums, self.totals = k.v("sums", count), k.v("totals", count)
        self.factors = k.v("factors", 2 * self.j_tiles)
        for one in (*self.sums, *self.totals, *self.factors):
            k.v_mov_b32(one, 0)
        k.comment("The scales of this lane's rows of x, and of this wave's rows of w")
        self.x_scales, self.w_scales = k.v("x_scales", self.j_tiles), k.v("w_scales")
        self.scale_at, self.origin = k.v("scale_at", self.j_tiles), k.v("origin")
        self.x_block, self.w_block = k.s("x_block"), k.s("w_block")
        k.v_mov_b32(self.origin, 0)
        k.s_mov_b32(self.x_block, 0)
        k.s_mov_b32(self.w_block, 0)
        with k.temporary("blocks", 1, "s") as blocks, k.temporary("size", 1, "s") as size:
            k.s_lshr_b32(blocks, given["k"], BLOCK.bit_length() - 1)
            k.s_sub_u32(blocks, blocks, 1)
            k.s_mul_i32(size, blocks, given["x_scale_block"])
            k.s_add_u32(size, size, 4)
            self.x_scale_rows = self.buffer_of_rows(
                "x_scale_rows", given["x_scale"], self.m_first, given["m"], self.rows, given["x_scale_row"], size
            )
            self.w_scale_row = k.s("w_scale_row_of_wave", 4)
            k.s_mul_i32(size, blocks, given["w_scale_block"])
            k.s_add_u32(blocks, self.n_first, self.wave_n)
            k.s_lshr_b32(blocks, blocks, BLOCK.bit_length() - 1)
            advance(k, self.w_scale_row, given["w_scale"], blocks, given["w_scale_row"])
            k.s_add_u32(self.w_scale_row[2], size, 4)
            raw_buffer(k, self.w_scale_row)
        for j, at in enumerate(self.scale_at):
            k.v_add_u32(at, self.wave_m, self.lane)
            if j:
                k.v_add_u32(at, SIDE * j, at)
            k.v_mul_lo_u32(at, at, given["x_scale_row"])

    def _begin_scales(self) -> list[Step]:
        """Begin to load the scales of the next block."""
        k = self.k
        loads: list[Step] = [
            partial(k.emit_buffer, "load", scale, at, self.x_scale_rows, scalar=self.x_block)
            for scale, at in zip(self.x_scales, self.scale_at, strict=True)
        ]
        return [
            *loads,
            partial(k.emit_buffer, "load", self.w_scales, self.origin, self.w_scale_row, scalar=self.w_block),
            partial(k.s_add_u32, self.x_block, self.x_block, self.given["x_scale_block"]),
            partial(k.s_add_u32, self.w_block, self.w_block, self.given["w_scale_block"]),
        ]

    def _turn_scales(self) -> list[Step]:
        """The factors of the current block, whose scales have come; then begin to load those of the next one."""
        k = self.k
        arrived: list[Step] = [partial(k.wait_for, self.x_scales, self.w_scales)]
        products: list[Step] = [
            partial(k.v_mul_f32, self.factors[2 * j], self.w_scales, scale) for j, scale in enumerate(self.x_scales)
        ]
        return [*arrived, *products, *self._begin_scales()]

    def _multiply(self, which: int, is_first: bool = False) -> list[Step]:
        """In a block's first substep, the sums of the block before go to the totals."""
        steps = super()._multiply(which)
        if not is_first:
            return steps
        first, end = self.op.parts[0]
        tiles = [(i, j) for i in range(self.i_tiles) for j in range(self.j_tiles)]

        def begin(i: int, j: int) -> None:
            self._promote(i, j)
            a, b = self.fragment(which, "w", i)[first:end], self.fragment(which, "x", j)[first:end]
            getattr(self.k, self.op.instruction)(self._tile(self.sums, i, j), a, b, 0)

        return [*(partial(begin, *tile) for tile in tiles), *steps[len(tiles) :]]

    def _tile(self, registers: Register, i: int, j: int) -> Register:
        at = 16 * (i * self.j_tiles + j)
        return registers[at : at + 16]

    def _promote(self, i: int, j: int) -> None:
        """Add a tile's sums, times both scales, to its totals."""
        k, factor = self.k, self.factors[2 * j : 2 * j + 2]
        found = pairs((self._tile(self.sums, i, j),)), pairs((self._tile(self.totals, i, j),))
        for part, total in zip(*found, strict=True):
            k.v_pk_fma_f32(total, part, factor, total, mods="op_sel_hi:[1,0,1]")

    def finish(self) -> None:
        """Add the last block, and store."""
        for i in range(self.i_tiles):
            for j in range(self.j_tiles):
                self._promote(i, j)
        self.k.free(self.sums)
        self.sums = self.totals
        super().finish()
