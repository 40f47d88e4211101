"""The end of a product: sums are scaled, the bias is added, and rows are stored."""

from opmux_asm.kernels.numbers import BYTES, Constants, add, multiply, pack, scale, unpack
from opmux_asm.kernels.product_places import SIDE, Places
from opmux_asm.kernels.rows import RAW_BUFFER
from opmux_asm.writer import Register

FAR = 0x7FFFFFFF
"""An offset past every buffer."""


class Result(Places):
    """The result of a tile."""

    @property
    def is_scaled(self) -> bool:
        """Whether the sums have still to be scaled."""
        return self.op.scaled

    def take(self, value: Register, total: Register) -> None:
        """Copy a sum to a vector register."""
        self.k.v_accvgpr_read_b32(value, total)

    def finish(self) -> None:
        """Scale, add the bias, round, and store four neighbours of a row at a time."""
        k, given, result = self.k, self.given, self.op.result
        constants, size, bias_size = Constants(k), BYTES[result], BYTES[self.op.bias]
        k.comment("The tile of y")
        y_stride, column = k.s("y_stride"), k.v("column")
        k.s_mul_i32(y_stride, given["n"], size)
        y_rows = self.buffer_of_rows("y_rows", given["y"], self.m_first, given["m"], self.rows, y_stride, y_stride)
        biases = self._vector("biases", given["bias"], given["bias_bytes"])
        k.s_add_u32(self.n_first, self.n_first, self.wave_n)
        k.v_lshl_add_u32(column, self.upper, 2, self.n_first)
        row_at, bias_at = k.v("row_at", self.j_tiles), k.v("bias_at")
        k.v_lshlrev_b32(bias_at, bias_size.bit_length() - 1, column)
        with k.temporary("column_at") as column_at:
            k.v_lshlrev_b32(column_at, size.bit_length() - 1, column)
            for j, at in enumerate(row_at):
                k.v_add_u32(at, self.wave_m, self.lane)
                if j:
                    k.v_add_u32(at, SIDE * j, at)
                k.v_mul_lo_u32(at, at, y_stride)
                k.v_add_u32(at, at, column_at)
        if self.is_scaled:
            self._scales()
        far = constants.vector("far", FAR)
        inside, values, packed = k.s("inside", 8), k.v("values", 16), k.v("packed", 4 * size)
        bias = k.v("bias_values", 16)
        k.comment("All biases and scales, before the first store: a wait for one that came later would wait for stores")
        parts = [k.v(f"bias_packed{i}", 4 * bias_size) for i in range(self.i_tiles)]
        for i, part in enumerate(parts):
            for g in range(4):
                place = SIDE * i + 8 * g
                k.emit_buffer("load", part[bias_size * g : bias_size * (g + 1)], bias_at, biases, bias_size * place)
                if self.is_scaled:
                    k.emit_buffer("load", self.w_factors[i][4 * g : 4 * g + 4], bias_at, self.w_scales, 4 * place)
        k.wait_for(*parts, *(self.w_factors if self.is_scaled else ()))
        for i, part in enumerate(parts):
            k.comment(f"Columns {SIDE * i} and on")
            for g in range(4):
                with k.temporary("at_column") as at_column:
                    k.v_add_u32(at_column, SIDE * i + 8 * g, column)
                    k.v_cmp_gt_u32(inside[2 * g : 2 * g + 2], given["n"], at_column)
            unpack(k, self.op.bias, part, bias)
            for j in range(self.j_tiles):
                first = 16 * (i * self.j_tiles + j)
                for value, total in zip(values, self.sums[first : first + 16], strict=True):
                    self.take(value, total)
                if self.is_scaled:
                    self._scale(values, i, j)
                add(k, values, values, bias)
                pack(k, result, values, packed, constants)
                for g in range(4):
                    with k.temporary(f"store_at{g}") as store_at:
                        k.v_cndmask_b32_e64(store_at, far, row_at[j], inside[2 * g : 2 * g + 2])
                        data = packed[size * g : size * (g + 1)]
                        k.emit_buffer("store", data, store_at, y_rows, size * (SIDE * i + 8 * g))

    def _vector(self, name: str, pointer: Register, size: Register) -> Register:
        """A buffer of one row."""
        k, buffer = self.k, self.k.s(name, 4)
        k.s_mov_b32(buffer[0], pointer[0])
        k.s_and_b32(buffer[1], pointer[1], 0xFFFF)
        k.s_mov_b32(buffer[2], size)
        k.s_mov_b32(buffer[3], RAW_BUFFER)
        return buffer

    def _scales(self) -> None:
        """Load the scales of this lane's rows, and prepare to load those of its columns."""
        k, given = self.k, self.given
        with k.temporary("scale_bytes", 1, "s") as size:
            k.s_lshl_b32(size, given["n"], 2)
            self.w_scales = self._vector("w_scales", given["w_scale"], size)
            k.s_lshl_b32(size, given["m"], 2)
            x_scales = self._vector("x_scales", given["x_scale"], size)
        self.w_factors = [k.v(f"w_factors{i}", 16) for i in range(self.i_tiles)]
        self.x_factors = k.v("x_factors", self.j_tiles)
        with k.temporary("scale_at") as at, k.temporary("first_row", 1, "s") as first:
            k.s_add_u32(first, self.m_first, self.wave_m)
            k.v_add_u32(at, first, self.lane)
            k.v_lshlrev_b32(at, 2, at)
            for j, factor in enumerate(self.x_factors):
                k.emit_buffer("load", factor, at, x_scales, 4 * SIDE * j)
            k.wait_for(self.x_factors)

    def _scale(self, values: Register, i: int, j: int) -> None:
        """Multiply sums by both scales."""
        k = self.k
        if self.op.dtype == "int8":
            for value in values:
                k.v_cvt_f32_i32(value, value)
        scale(k, values, self.x_factors[j])
        multiply(k, values, values, self.w_factors[i])
