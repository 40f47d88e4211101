"""`attention` of heads of 128, forward, with matrix instructions of 32x32.

A wave has 32 queries, which are the columns of both products: the scores, whose rows are keys, and the result, whose
rows are dims. A lane thus holds scores of one query, in the order in which the second product takes its shares.
"""

from opmux_asm.kernels.attention_loop import Loop
from opmux_asm.kernels.attention_places import ROW_BYTES
from opmux_asm.kernels.numbers import pack
from opmux_asm.kernels.rope import advance
from opmux_asm.kernels.rows import raw_buffer
from opmux_asm.kernels.softmax import log_of_sum, reciprocal
from opmux_asm.writer import Kernel, Register

FAMILY = "attention"
DTYPES = ("bf16", "f16")


def name_of(dtype: str) -> str:
    """A kernel's name."""
    return f"{FAMILY}_{dtype}"


def kernels(arch: str) -> list[Kernel]:
    """Every kernel of the family."""
    return [Attention(name_of(dtype), arch, dtype).write() for dtype in DTYPES]


class Attention(Loop):
    """Writes one kernel."""

    def write(self) -> Kernel:
        """The kernel."""
        k = self.k
        self.given = k.load_arguments()
        self.begin()
        self.run()
        k.free(
            *self.ring, *self.scores, self.staged_keys, self.staged_values, self.queries, *self.turned, self.turned_at
        )
        self._finish()
        return k

    def _finish(self) -> None:
        """Divide by the sums, round, and store; four neighbouring dims at a time."""
        k, given = self.k, self.given
        k.comment("The result")
        self.place_lane()
        total, inverse = self.softmax.gather([self.other_half]), k.v("inverse")
        reciprocal(k, total, inverse)
        with k.temporary("out_token", 1, "s") as row, k.temporary("out_place", 2, "s") as place:
            stride = k.s("out_step")
            k.s_mul_i32(row, k.group[2], given["seq_q"])
            k.s_mul_i32(row, row, given["heads"])
            k.s_add_u32(row, row, k.group[1])
            k.s_mov_b32(stride, ROW_BYTES)
            advance(k, place, given["out"], row, stride)
            k.s_lshl_b32(stride, given["heads"], ROW_BYTES.bit_length() - 1)
            rows = self.rows_of("out", place, stride, ROW_BYTES)
        with k.temporary("out_at") as at, k.temporary("packed", 2) as packed:
            k.v_mul_lo_u32(at, self.row, stride)
            k.v_lshl_add_u32(at, self.upper, 3, at)
            if self.dtype == "bf16" and k.arch == "gfx942":
                self.constants.prepare_bf16()
            for i in range(0, len(self.sums), 4):
                four = self.sums[i : i + 4]
                for one in four:
                    k.v_mul_f32(one, inverse, one)
                pack(k, self.dtype, four, packed, self.constants)
                k.emit_buffer("store", packed, at, rows, 4 * i)
        self._lse(total)

    def _lse(self, total: Register) -> None:
        """Store the logarithms, if they are wanted."""
        k, given = self.k, self.given
        k.comment("The log-sum-exp")
        rows, logs, at = k.s("lse_rows", 4), k.v("logs"), k.v("lse_at")
        log_of_sum(k, self.softmax.top[0], self.softmax.factor[0], total, logs)
        with k.temporary("lse_row", 1, "s") as row, k.temporary("lse_step", 1, "s") as step:
            k.s_mul_i32(row, k.group[2], given["heads"])
            k.s_add_u32(row, row, k.group[1])
            k.s_lshl_b32(step, given["seq_q"], 2)
            advance(k, rows, given["lse"], row, step)
            k.s_lshl_b32(step, self.first, 2)
            k.s_add_u32(rows[0], rows[0], step)
            k.s_addc_u32(rows[1], rows[1], 0)
            k.s_sub_u32(rows[2], given["seq_q"], self.first)
            k.s_lshl_b32(rows[2], rows[2], 2)
        k.s_cmp_eq_u64(given["lse"], 0)
        k.s_cselect_b32(rows[2], 0, rows[2])
        raw_buffer(k, rows)
        k.v_lshlrev_b32(at, 2, self.row)
        k.s_mov_b32("exec_hi", 0)
        k.emit_buffer("store", logs, at, rows)
