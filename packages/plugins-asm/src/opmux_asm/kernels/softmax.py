"""Softmax over keys that arrive block by block: what both kernels of attention share.

A query's reference is its largest score so far, but follows a new one only where that is larger by more than `SLACK`
(an exponent of 2): then the sums and the result are multiplied by a factor, and are left alone otherwise. A share of up
to 2**8 has the precision of one below 1. Scores are scaled once the reference is subtracted, which keeps huge ones
exact.
"""

from collections.abc import Sequence
from functools import partial

from opmux_asm.kernels.interleaving import Step
from opmux_asm.kernels.numbers import HIGH_HALVES, Constants
from opmux_asm.writer import VCC, Kernel, Register

SLACK = 0x41000000
"""8 as float32."""
LEAST, MINUS_INFINITY = 0xFF7FFFFF, 0xFF800000
"""As float32: the reference before the first key, and a score without weight."""
ROUNDING = 0x8000
"""Half a unit in the last place of a bfloat16, as a part of a float32."""
LN_2 = 0x3F317218
"""The natural logarithm of 2 as float32."""


class Softmax:
    """The state of a lane's query.

    Attributes:
        top: the reference; its upper register is not used, since packed instructions take pairs.
        total: two sums of shares, over this lane's keys.
        factor: what a score is multiplied by, likewise a pair.
    """

    def __init__(self, k: Kernel, dtype: str, scale: Register, constants: Constants) -> None:
        self.k, self.dtype, self.constants = k, dtype, constants
        self.top, self.total, self.factor = k.v("top", 2), k.v("total", 2), k.v("factor", 2)
        self.minus_top, self.peak = k.v("minus_top", 2), k.v("peak")
        k.v_mov_b32(self.factor[0], scale)
        k.v_mov_b32(self.factor[1], scale)
        k.v_mov_b32(self.top[0], LEAST)
        for register in (self.minus_top, self.total):
            for one in register:
                k.v_mov_b32(one, 0 if register is self.total else LEAST ^ 1 << 31)
        constants.scalar("high_halves", HIGH_HALVES)
        constants.scalar("rounding", ROUNDING)

    def largest(self, scores: Sequence[Register]) -> list[Step]:
        """Steps after which `peak` is the largest of so many scores, at least three."""
        k, peak = self.k, self.peak
        steps: list[Step] = [partial(k.v_max3_f32, peak, scores[0], scores[1], scores[2])]
        rest = list(scores[3:])
        while len(rest) > 1:
            one, other = rest.pop(0), rest.pop(0)
            steps.append(partial(k.v_max3_f32, peak, peak, one, other))
        if rest:
            steps.append(partial(k.v_max_f32, peak, peak, rest[0]))
        return steps

    def follow(self, result: Register, other_lanes: Sequence[Register]) -> None:
        """Where a lane's largest score exceeds its reference by too much, move all references up, and rescale.

        Args:
            result: the sums of values so far.
            other_lanes: addresses for ``ds_bpermute_b32``, of the lanes that hold further keys of the same query.
        """
        k = self.k
        with k.temporary("excess") as excess:
            k.v_sub_f32(excess, self.peak, self.top[0])
            k.v_mul_f32(excess, self.factor[0], excess)
            k.v_cmp_lt_f32(VCC, SLACK, excess)
        with k.skipped_if("vccz"):
            k.comment("Move the references up")
            with k.temporary("others", 2) as others:
                for lanes in other_lanes:
                    k.ds_bpermute_b32(others[0], lanes, self.peak)
                    k.wait(lgkm=0)
                    k.v_max_f32(self.peak, self.peak, others[0])
                k.v_max_f32(self.peak, self.peak, self.top[0])
                k.v_sub_f32(others[0], self.top[0], self.peak)
                k.v_mul_f32(others[0], self.factor[0], others[0])
                k.v_exp_f32(others[0], others[0])
                k.v_mov_b32(self.top[0], self.peak)
                k.v_mul_f32(self.minus_top[0], -1.0, self.peak)
                for pair in pairs((self.total, result)):
                    k.v_pk_mul_f32(pair, pair, others, mods="op_sel_hi:[1,0]")

    def shares(self, scores: Register, packed: Register) -> list[Step]:
        """Steps that turn scores, a multiple of 4, into packed shares, and add them to the sums.

        ``packed`` may be the first half of ``scores``.
        """
        k = self.k
        steps: list[Step] = []
        for at in range(0, len(scores), 4):
            four = pairs((scores[at : at + 4],))
            for instruction, other in ((k.v_pk_add_f32, self.minus_top), (k.v_pk_mul_f32, self.factor)):
                steps += [partial(instruction, pair, pair, other, mods="op_sel_hi:[1,0]") for pair in four]
            steps += [partial(k.v_exp_f32, one, one) for one in scores[at : at + 4]]
            steps += [partial(k.v_pk_add_f32, self.total, self.total, pair) for pair in four]
            for i in range(2):
                low, high = scores[at + 2 * i], scores[at + 2 * i + 1]
                steps += self._pack(low, high, packed[at // 2 + i])
        return steps

    def _pack(self, low: Register, high: Register, out: Register) -> list[Step]:
        """Steps that round two shares, which are not negative, to the nearest; both are overwritten."""
        k = self.k
        if self.dtype == "f16":
            return [
                partial(k.v_cvt_f16_f32, low, low),
                partial(k.v_cvt_f16_f32, high, high),
                partial(k.v_pack_b32_f16, out, low, high),
            ]
        if k.arch == "gfx950":
            return [partial(k.v_cvt_pk_bf16_f32, out, low, high)]
        half, halves = self.constants.scalar("rounding", ROUNDING), self.constants.scalar("high_halves", HIGH_HALVES)
        return [
            partial(k.v_add_u32, low, half, low),
            partial(k.v_add_u32, high, half, high),
            partial(k.v_perm_b32, out, high, low, halves),
        ]

    def gather(self, other_lanes: Sequence[Register]) -> Register:
        """The sum over all keys of this lane's query."""
        k = self.k
        k.v_add_f32(self.total[0], self.total[0], self.total[1])
        for lanes in other_lanes:
            with k.temporary("others") as others:
                k.ds_bpermute_b32(others, lanes, self.total[0])
                k.wait(lgkm=0)
                k.v_add_f32(self.total[0], self.total[0], others)
        return self.total[0]


def pairs(registers: Sequence[Register]) -> list[Register]:
    """Neighbouring registers, two by two."""
    return [register[i : i + 2] for register in registers for i in range(0, len(register), 2)]


def reciprocal(k: Kernel, total: Register, out: Register) -> None:
    """``1 / total``, or 0 for a query that attends to nothing."""
    k.v_rcp_f32(out, total)
    with k.temporary("nothing") as nothing:
        k.v_mov_b32(nothing, 0)
        k.v_cmp_eq_f32(VCC, 0, total)
        k.v_cndmask_b32(out, out, nothing, VCC)


def log_of_sum(k: Kernel, top: Register, factor: Register, total: Register, out: Register) -> None:
    """The natural logarithm of ``total * 2**(top * factor)``."""
    k.v_log_f32(out, total)
    k.v_fma_f32(out, top, factor, out)
    k.v_mul_f32(out, LN_2, out)


def signed(k: Kernel, queries: Register, keep: Register, sign: Register) -> None:
    """Take queries times the sign of a scale, or zeros where that is 0: the kernels' factor is positive."""
    for one in queries:
        k.v_and_b32(one, keep, one)
        k.v_xor_b32(one, sign, one)
