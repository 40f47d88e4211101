"""From float32 values to codes of 8 bits with scales."""

from collections.abc import Sequence

from opmux_asm.kernels.numbers import Constants
from opmux_asm.kernels.reductions import ACROSS, over_group
from opmux_asm.kernels.rows import Access
from opmux_asm.writer import VCC, Kernel, Register

RECIPROCALS = {"fp8": {"gfx942": 1 / 240, "gfx950": 1 / 448}, "int8": {"gfx942": 1 / 127, "gfx950": 1 / 127}}
"""1 over the largest code: e4m3 FNUZ reaches 240, OCP's 448."""
SMALLEST_NORMAL, RAISED = 0x00800000, 0x4B800000
"""As float32: 2**-126, below which a scale is lifted by 2**24, since its reciprocal would overflow."""
GROUP = 128
"""Columns of a block."""
ACROSS_ROW = ACROSS[:4]
"""Steps after which each lane of a row of 16 has combined all of them."""
FIRST_LANES = {16: 0x00010001, 32: 1}
"""By the number of lanes that hold a block, the first of each in half a wave."""


def largest(k: Kernel, values: Sequence[Register], out: Register) -> None:
    """The largest magnitude of a thread's values; NaN is ignored."""
    k.v_mov_b32(out, 0)
    for value in values:
        for i in range(0, len(value), 2):
            k.v_max3_f32(out, abs(value[i]), abs(value[i + 1]), out)


class Codes:
    """Quantises the values of a row."""

    def __init__(self, k: Kernel, codes: str, access: Access, constants: Constants) -> None:
        self.k, self.codes, self.access, self.tile = k, codes, access, access.tile
        self.constants = constants
        self.scale, self.raised, self.inverse = k.v("scale"), k.v("raised", 2), k.v("inverse", 2)
        if codes == "fp8":
            k.s_setreg_imm32_b32("hwreg(HW_REG_MODE, 23, 1)", 1, note="conversions saturate")

    def by_row(self, values: Sequence[Register], scales: Register, target: Register) -> None:
        """One scale for the row; the first thread stores it."""
        k = self.k
        with k.temporary("largest") as most:
            largest(k, values, most)
            over_group(k, "v_max_f32", most, self.scale)
        self._scale()
        with k.temporary("scale_at") as at:
            k.v_lshlrev_b32(at, 2, k.thread)
            self._store_scale(1, 0, at, scales, 0)
        for chunk, value in enumerate(values):
            self._store(chunk, value, target)

    def by_block(self, values: Sequence[Register], scales: Register, target: Register) -> None:
        """A scale for 128 columns; the first thread of those that hold them stores it."""
        k, tile = self.k, self.tile
        lanes = GROUP // tile.per
        at, first = k.v("scale_at"), FIRST_LANES[lanes]
        k.v_lshrrev_b32(at, lanes.bit_length() - 1, k.thread)
        k.v_lshlrev_b32(at, 2, at)
        for chunk, value in enumerate(values):
            largest(k, [value], self.scale)
            for step in ACROSS_ROW:
                k.v_max_f32_dpp(self.scale, self.scale, self.scale, mods=step)
            if lanes == 32:
                with k.temporary("other_row") as other:
                    k.ds_swizzle_b32(other, self.scale, mods="offset:0x401f", note="the lane 16 further, or nearer")
                    k.wait_for(other)
                    k.v_max_f32(self.scale, self.scale, other)
            self._scale()
            self._store_scale(first, first, at, scales, 4 * chunk * tile.threads // lanes)
            self._store(chunk, value, target)

    def _store_scale(self, low: int, high: int, at: Register, scales: Register, immediate: int) -> None:
        """Store the scale from the lanes of two masks, which are of the lower and upper half of a wave."""
        k = self.k
        k.s_mov_b32("exec_lo", low)
        k.s_mov_b32("exec_hi", high)
        k.emit_buffer("store", self.scale, at, scales, immediate)
        k.s_mov_b64("exec", -1)

    def _scale(self) -> None:
        """From the largest magnitude to the scale and to what values are multiplied by."""
        k = self.k
        raised = self.constants.vector("lift", RAISED)
        reciprocal = self.constants.number("reciprocal", RECIPROCALS[self.codes][k.arch])
        k.v_mul_f32(self.scale, reciprocal, self.scale)
        k.v_cmp_lt_f32(VCC, 0, self.scale)
        k.v_cndmask_b32(self.scale, 1.0, self.scale, VCC)
        k.v_cmp_gt_f32(VCC, SMALLEST_NORMAL, self.scale)
        k.v_cndmask_b32(self.raised[0], 1.0, raised, VCC)
        k.v_mul_f32(self.inverse[0], self.scale, self.raised[0])
        k.v_rcp_f32(self.inverse[0], self.inverse[0])

    def _store(self, chunk: int, value: Register, target: Register) -> None:
        """A chunk's codes. The values are multiplied twice: the product of both factors may be too large."""
        k = self.k
        for factor in (self.raised, self.inverse):
            for i in range(0, len(value), 2):
                pair = value[i : i + 2]
                k.v_pk_mul_f32(pair, pair, factor, mods="op_sel_hi:[1,0]")
        packed = k.v(f"codes{chunk}", len(value) // 4)
        for i, word in enumerate(packed):
            four = value[4 * i : 4 * i + 4]
            if self.codes == "fp8":
                k.v_cvt_pk_fp8_f32(word, four[0], four[1])
                k.v_cvt_pk_fp8_f32(word, four[2], four[3], mods="op_sel:[0,0,1]")
            else:
                self._int8(four, word)
        self.access.store("q8", target, chunk, packed)
        k.free(packed)

    def _int8(self, four: Register, word: Register) -> None:
        """Rounded, then converted, which makes NaN 0 and saturates, then held within 127 of zero."""
        k = self.k
        low = self.constants.scalar("lowest", -127 & 0xFFFFFFFF)
        bytes_ = self.constants.scalar("low_bytes", 0x0C0C0400)
        for value in four:
            k.v_rndne_f32(value, value)
        for value in four:
            k.v_cvt_i32_f32(value, value)
        for value in four:
            k.v_min_i32(value, 127, value)
            k.v_max_i32(value, low, value)
        k.v_perm_b32(four[0], four[1], four[0], bytes_)
        k.v_perm_b32(four[2], four[3], four[2], bytes_)
        k.v_lshl_or_b32(word, four[2], 16, four[0])
