"""Reciprocal roots."""

from opmux_asm.writer import VCC, Kernel, Register

SMALL, SMALL_FACTOR, BACK = 0x0D800000, 0x5F800000, 0x4F800000
"""As float32: 2**-100, below which a mean square is multiplied by 2**64 for v_rsq_f32, and 2**32, which undoes that."""


def reciprocal_root(k: Kernel, total: Register, inverse_count: Register, eps: Register) -> None:
    """``total`` becomes ``rsqrt(total * inverse_count + eps)``, tiny numbers included, which v_rsq_f32 flushes."""
    k.comment("The reciprocal root of the mean")
    with k.temporary("factor") as factor, k.temporary("one") as one:
        k.v_mul_f32(total, inverse_count, total)
        k.v_add_f32(total, eps, total)
        k.v_mov_b32(factor, SMALL_FACTOR)
        k.v_mov_b32(one, 1.0)
        k.v_cmp_gt_f32(VCC, SMALL, total)
        k.v_cndmask_b32(factor, one, factor, VCC)
        k.v_mul_f32(total, total, factor)
        k.v_rsq_f32(total, total)
        k.v_mov_b32(factor, BACK)
        k.v_cndmask_b32(factor, one, factor, VCC)
        k.v_mul_f32(total, total, factor)
