"""A product's tile: its buffers, each thread's places in memory and LDS, and the registers of the operands."""

from opmux_asm.kernels.operands import Operands
from opmux_asm.kernels.rows import RAW_BUFFER
from opmux_asm.writer import Argument, Kernel, Register

ARGUMENTS = (
    Argument("x", "p"), Argument("w", "p"), Argument("bias", "p"), Argument("y", "p"), Argument("x_scale", "p"),
    Argument("w_scale", "p"), Argument("m", "I"), Argument("n", "I"), Argument("k", "I"), Argument("x_stride", "I"),
    Argument("w_stride", "I"), Argument("bias_bytes", "I"),
)  # fmt: skip
"""Strides in bytes. Without a bias, ``bias_bytes`` is 0: then it reads as 0. Scales are null for `linear`."""
THREADS, SIDE = 256, 32
"""Threads of a workgroup; rows and columns of a matrix instruction's result."""
SWIZZLE = 1
"""A row's chunks are swizzled by its number without so many of its last bits: two rows of 64 bytes fill the banks of
gfx942, and two of 128 those of gfx950."""


class Places:
    """Where the parts of a tile are."""

    arguments: tuple[Argument, ...] = ARGUMENTS

    def __init__(self, name: str, operands: Operands, rows: int, columns: int) -> None:
        self.op, self.rows, self.columns = operands, rows, columns
        self.i_tiles, self.j_tiles = columns // 2 // SIDE, rows // 2 // SIDE
        self.row_bytes, self.bits = operands.row_bytes, operands.chunks.bit_length() - 1
        self.rows_at_once = THREADS // operands.chunks
        about = (
            f"y = x @ w.T + bias, x and w {operands.dtype}, y {operands.result}; a workgroup's tile is {rows} rows of "
            f"x by {columns} of w,\nof which each of two buffers of LDS holds {operands.row_bytes} bytes. "
            "Grid: tiles of n, tiles of m."
        )
        self.k = Kernel(name, operands.arch, THREADS, self.arguments, about, dims=2)
        self.x_bytes = rows * self.row_bytes
        self.buffer_bytes = self.x_bytes + columns * self.row_bytes
        self.k.allocate_lds(2 * self.buffer_bytes)

    given: dict[str, Register]
    """The arguments."""
    sums: Register
    """The tile's sums: 16 registers for each tile of a matrix instruction, in order of w's rows, then x's."""

    def begin(self) -> None:
        """Buffers of both tiles, and each thread's places in memory and LDS."""
        k, given, bits = self.k, self.given, self.bits
        k.comment("Buffers of the tiles' rows; those past the last one read as 0")
        k_bytes = k.s("k_bytes")
        k.s_mul_i32(k_bytes, given["k"], self.op.bytes)
        self.n_first, self.m_first = k.s("n_first"), k.s("m_first")
        k.s_mul_i32(self.n_first, k.group[0], self.columns)
        k.s_mul_i32(self.m_first, k.group[1], self.rows)
        self.x_rows = self.buffer_of_rows(
            "x_rows", given["x"], self.m_first, given["m"], self.rows, given["x_stride"], k_bytes
        )
        self.w_rows = self.buffer_of_rows(
            "w_rows", given["w"], self.n_first, given["n"], self.columns, given["w_stride"], k_bytes
        )
        k.comment("The chunk that a thread loads, and where in LDS it goes")
        self.x_at = k.v("x_at", self.rows // self.rows_at_once)
        self.w_at = k.v("w_at", self.columns // self.rows_at_once)
        with k.temporary("row") as row, k.temporary("chunk") as chunk, k.temporary("swizzle") as swizzle:
            k.v_lshrrev_b32(row, bits, k.thread)
            k.v_and_b32(chunk, self.op.chunks - 1, k.thread)
            k.v_bfe_u32(swizzle, row, SWIZZLE, bits)
            if k.arch == "gfx942":  # memory in order, LDS swizzled
                self.write_at = k.v("write_at")
                k.v_xor_b32(swizzle, swizzle, chunk)
                k.v_lshlrev_b32(self.write_at, 4, swizzle)
                k.v_lshl_add_u32(self.write_at, row, bits + 4, self.write_at)
            else:  # LDS is filled in order, so memory is read swizzled
                k.v_xor_b32(chunk, swizzle, chunk)
            k.v_lshlrev_b32(chunk, 4, chunk)
            for at, stride in ((self.x_at, given["x_stride"]), (self.w_at, given["w_stride"])):
                for i, one in enumerate(at):
                    k.v_add_u32(one, i * self.rows_at_once, row)
                    k.v_mul_lo_u32(one, one, stride)
                    k.v_add_u32(one, one, chunk)
        k.comment("The chunks that a lane reads of LDS: its row's, swizzled, of both tiles")
        self.lane, self.upper = k.v("lane"), k.v("upper")
        self.wave = k.s("wave")
        k.v_and_b32(self.lane, SIDE - 1, k.thread)
        k.v_bfe_u32(self.upper, k.thread, 5, 1)
        with k.temporary("wave_of") as wave:
            k.v_lshrrev_b32(wave, 6, k.thread)
            k.v_readfirstlane_b32(self.wave, wave)
        self.wave_m, self.wave_n = k.s("wave_m"), k.s("wave_n")
        k.s_and_b32(self.wave_m, self.wave, 1)
        k.s_lshr_b32(self.wave_n, self.wave, 1)
        k.s_mul_i32(self.wave_m, self.wave_m, self.rows // 2)
        k.s_mul_i32(self.wave_n, self.wave_n, self.columns // 2)
        pairs = self.op.chunks // 2
        self.substeps = pairs // self.op.width
        self.read_x, self.read_w = k.v("read_x", pairs), k.v("read_w", pairs)
        with k.temporary("turn") as turn, k.temporary("chosen") as chosen:
            k.v_bfe_u32(turn, self.lane, SWIZZLE, bits)
            for read, first, region in ((self.read_x, self.wave_m, 0), (self.read_w, self.wave_n, self.x_bytes)):
                for i, one in enumerate(read):
                    k.v_add_u32(chosen, 2 * i, self.upper)
                    k.v_xor_b32(chosen, chosen, turn)
                    k.v_lshlrev_b32(chosen, 4, chosen)
                    k.v_add_u32(one, first, self.lane)
                    k.v_lshl_add_u32(one, one, bits + 4, chosen)
                    if region:
                        k.v_add_u32(one, region, one)
        self.frags = k.v("frags", 8 * self.op.width * (self.i_tiles + self.j_tiles))
        self.k_at, self.iterations = k.s("k_at"), k.s("iterations")
        k.s_mov_b32(self.k_at, 0)
        k.s_lshr_b32(self.iterations, given["k"], self.op.step_k.bit_length() - 1)

    def buffer_of_rows(
        self, name: str, pointer: Register, first: Register, total: Register, size: int, stride: Register,
        row_bytes: Register,
    ) -> Register:  # fmt: skip
        """A buffer of at most ``size`` rows from the row ``first`` on."""
        k, buffer = self.k, self.k.s(name, 4)
        with k.temporary("left", 1, "s") as left:
            k.s_sub_u32(left, total, first)
            k.s_min_u32(left, left, size)
            k.s_sub_u32(left, left, 1)
            k.s_mul_i32(left, left, stride)
            k.s_add_u32(buffer[2], left, row_bytes)
        k.s_mul_i32(buffer[0], first, stride)
        k.s_mul_hi_u32(buffer[1], first, stride)
        k.s_add_u32(buffer[0], buffer[0], pointer[0])
        k.s_addc_u32(buffer[1], buffer[1], pointer[1])
        k.s_and_b32(buffer[1], buffer[1], 0xFFFF)
        k.s_mov_b32(buffer[3], RAW_BUFFER)
        return buffer

    def fragment(self, which: int, operand: str, tile: int) -> Register:
        """The registers of a tile's chunk, of one of the two sets: of w, then of x."""
        at = which * (self.i_tiles + self.j_tiles) + (tile if operand == "w" else self.i_tiles + tile)
        size = 4 * self.op.width
        return self.frags[size * at : size * (at + 1)]
