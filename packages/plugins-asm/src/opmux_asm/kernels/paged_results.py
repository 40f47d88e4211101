"""The end of paged attention: what the waves of a workgroup found is joined through LDS, and stored."""

from opmux_asm.kernels.numbers import Constants, pack
from opmux_asm.kernels.rope import advance
from opmux_asm.kernels.rows import raw_buffer
from opmux_asm.kernels.softmax import Softmax, log_of_sum, pairs, reciprocal
from opmux_asm.writer import Kernel, Register

HEAD, WAVES = 128, 4
"""Dims of a head, waves of a workgroup."""
LDS_BYTES = WAVES * 4 * 1024
"""Of each wave a block of keys, later half of its rows of results."""


class Results:
    """The state that the loop leaves behind, and what becomes of it.

    Attributes:
        dtype: of queries and results.
        cache: what the caches hold, empty where that is the dtype of the queries.
        token: whose queries these are.
        query, part: which of the queries a lane has, and which quarter of a block's keys.
        others: addresses of the lanes with the other keys of a query.
        scales: by cache, the scale of its codes.
        sums: eight tiles of values.
    """

    k: Kernel
    given: dict[str, Register]
    constants: Constants
    softmax: Softmax
    dtype: str
    cache: str
    token: Register
    first_head: Register
    wave: Register
    query: Register
    part: Register
    others: list[Register]
    scales: dict[str, Register]
    sums: Register

    def finish(self) -> None:
        """Rescale what each wave found to one reference, add up, and store."""
        k = self.k
        total, top = self.softmax.gather(self.others), self.softmax.top[0]
        if self.dtype == "bf16" and k.arch == "gfx942":
            self.constants.prepare_bf16()
        k.comment("The references and sums of all waves")
        at = k.v("lds_at")
        k.barrier()  # the keys' blocks are not needed any more
        k.v_lshlrev_b32(at, 2, self.query)
        with k.temporary("own") as own:
            k.v_lshl_add_u32(own, self.wave, 6, at)
            k.s_mov_b32("exec_lo", 0xFFFF)
            k.s_mov_b32("exec_hi", 0)
            k.ds_write_b32(own, top, note="references")
            k.ds_write_b32(own, total, mods=f"offset:{64 * WAVES}", note="sums")
            k.s_mov_b64("exec", -1)
        k.barrier()
        tops, totals = k.v("tops", WAVES), k.v("totals", WAVES)
        for wave in range(WAVES):
            k.emit_read(tops[wave : wave + 1], at, 64 * wave)
            k.emit_read(totals[wave : wave + 1], at, 64 * (WAVES + wave))
        k.wait(lgkm=0)
        common, whole = k.v("common"), k.v("whole")
        k.v_max3_f32(common, tops[0], tops[1], tops[2])
        k.v_max_f32(common, common, tops[3])
        k.v_mov_b32(whole, 0)
        for one, sum_of_wave in zip(tops, totals, strict=True):
            k.v_sub_f32(one, one, common)
            k.v_mul_f32(one, self.softmax.factor[0], one)
            k.v_exp_f32(one, one)
            k.v_fma_f32(whole, one, sum_of_wave, whole)
        factor = k.v("weight")
        k.v_sub_f32(top, top, common)
        k.v_mul_f32(top, self.softmax.factor[0], top)
        k.v_exp_f32(top, top)
        reciprocal(k, whole, factor)
        k.v_mul_f32(factor, factor, top)
        if self.cache:
            k.v_mul_f32(factor, self.scales["v"], factor)
        self._lse(common, whole)
        k.comment("Each wave's part of the result: half of its rows at a time, which two waves add up")
        k.v_and_b32(at, 63, k.thread)
        k.v_lshlrev_b32(at, 4, at)
        write_at, base = k.v("write_at"), k.s("lds_base")
        k.s_lshl_b32(base, self.wave, 12)
        k.v_add_u32(write_at, base, at)
        k.s_and_b32(base, self.wave, 1)
        k.s_lshl_b32(base, base, 11)
        k.v_add_u32(at, base, at)
        k.free(tops, totals)
        eight, values = k.v("eight", 8), k.v("parts", 8 * WAVES)
        for turn in range(2):
            k.barrier()
            for row in range(2):
                for tile, one in enumerate(eight):
                    k.v_mul_f32(one, factor, self.sums[4 * tile + 2 * turn + row])
                for half in range(2):
                    offset = 2048 * row + 1024 * half
                    k.ds_write_b128(write_at, eight[4 * half : 4 * half + 4], mods=f"offset:{offset}")
            k.barrier()
            for wave in range(WAVES):
                for half in range(2):
                    part = values[8 * wave + 4 * half : 8 * wave + 4 * half + 4]
                    k.emit_read(part, at, 4096 * wave + 1024 * half)
            for wave in range(1, WAVES):
                k.wait_for(values[: 8 * (wave + 1)])
                for pair, other in zip(pairs((values[:8],)), pairs((values[8 * wave : 8 * wave + 8],)), strict=True):
                    k.v_pk_add_f32(pair, pair, other)
            k.s_lshr_b32(base, self.wave, 1)
            k.s_cmp_eq_u32(base, turn)
            with k.skipped_if("scc0"):
                self._store(values[:8])

    def _store(self, values: Register) -> None:
        """Eight dims of a query."""
        k, given = self.k, self.given
        k.comment("Store")
        with (
            k.temporary("out_rows", 4, "s") as rows, k.temporary("packed", 4) as packed, k.temporary("out_at") as at,
            k.temporary("out_row", 1, "s") as row, k.temporary("row_bytes", 1, "s") as row_bytes,
        ):  # fmt: skip
            k.s_mul_i32(row, self.token, given["heads"])
            k.s_add_u32(row, row, self.first_head)
            k.s_mov_b32(row_bytes, 2 * HEAD)
            advance(k, rows, given["out"], row, row_bytes)
            k.s_lshl_b32(rows[2], given["group_size"], (2 * HEAD).bit_length() - 1)
            raw_buffer(k, rows)
            pack(k, self.dtype, values, packed, self.constants)
            k.v_lshl_add_u32(at, self.part, 2, self.wave)
            k.v_lshlrev_b32(at, 4, at)
            k.v_lshl_add_u32(at, self.query, (2 * HEAD).bit_length() - 1, at)
            k.emit_buffer("store", packed, at, rows)
            k.wait(vm=0)

    def _lse(self, top: Register, total: Register) -> None:
        """Store the logarithms, if they are wanted; all waves have the same ones, so one stores them."""
        k, given = self.k, self.given
        k.comment("The log-sum-exp")
        with k.temporary("logs") as logs, k.temporary("log_at") as at, k.temporary("log_rows", 4, "s") as rows:
            log_of_sum(k, top, self.softmax.factor[0], total, logs)
            with k.temporary("log_bytes", 1, "s") as step:
                k.s_lshl_b32(step, given["tokens"], 2)
                advance(k, rows, given["lse"], self.first_head, step)
                k.s_sub_u32(rows[2], given["group_size"], 1)
                k.s_mul_i32(rows[2], rows[2], step)
                k.s_add_u32(rows[2], rows[2], 4)
                k.v_mul_lo_u32(at, self.query, step)
                k.s_lshl_b32(step, self.token, 2)
                k.s_add_u32(rows[0], rows[0], step)
                k.s_addc_u32(rows[1], rows[1], 0)
            k.s_cmp_eq_u64(given["lse"], 0)
            k.s_cselect_b32(rows[2], 0, rows[2])
            k.s_cmp_lg_u32(self.wave, 0)
            k.s_cselect_b32(rows[2], 0, rows[2])
            raw_buffer(k, rows)
            k.s_mov_b32("exec_lo", 0xFFFF)
            k.s_mov_b32("exec_hi", 0)
            k.emit_buffer("store", logs, at, rows)
            k.s_mov_b64("exec", -1)
