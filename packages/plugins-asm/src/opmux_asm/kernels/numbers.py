"""Between packed elements of memory and float32 registers."""

import struct
from collections.abc import Sequence

from opmux_asm.writer import VCC, Kernel, Register

BYTES = {"bf16": 2, "f16": 2, "f32": 4, "q8": 1}
"""Bytes of an element; q8 is any dtype of 8 bits."""
SUFFIXES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
"""The short names of dtypes in kernels' names, and torch's."""
HIGH_HALVES = 0x07060302
"""v_perm_b32: the upper halves of two registers, the first operand's on top."""
LOW_HALVES = 0x05040100
"""Their lower halves."""


HALF_UNIT, QUIET_NAN = 0x7FFF, 0x7FFF0000
"""Less than half a unit in the last place of a bfloat16, and a NaN, as parts of float32."""


class Constants:
    """Constants in registers, made when first asked for: instructions of three operands take no literals.

    Ask for those that a kernel needs before a loop or a branch, or they would be made within.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.made: dict[tuple[str, int], Register] = {}

    def scalar(self, name: str, value: int) -> Register:
        """A scalar register that holds ``value``."""
        if ("s", value) not in self.made:
            self.made["s", value] = self.kernel.s(name)
            self.kernel.s_mov_b32(self.made["s", value], value)
        return self.made["s", value]

    def number(self, name: str, value: float) -> Register:
        """A scalar register that holds a float32."""
        return self.scalar(name, int.from_bytes(struct.pack("<f", value), "little"))

    def vector(self, name: str, value: int) -> Register:
        """A vector register that holds ``value`` in every lane."""
        if ("v", value) not in self.made:
            self.made["v", value] = self.kernel.v(name)
            self.kernel.v_mov_b32(self.made["v", value], value)
        return self.made["v", value]

    def prepare_bf16(self) -> None:
        """Make those that `pack` takes for bfloat16 on gfx942."""
        self.scalar("half_unit", HALF_UNIT)
        self.vector("quiet_nan", QUIET_NAN)
        self.scalar("high_halves", HIGH_HALVES)


def unpack(k: Kernel, dtype: str, packed: Register, out: Register) -> None:
    """The elements of ``packed`` as float32 in ``out``; where both are float32 registers, they are the same ones."""
    if dtype == "f32":
        for source, target in zip(packed, out, strict=True):
            k.v_mov_b32(target, source)
        return
    for i, pair in enumerate(packed):
        low, high = out[2 * i], out[2 * i + 1]
        if dtype == "bf16":
            k.v_lshlrev_b32(low, 16, pair)
            k.v_and_b32(high, 0xFFFF0000, pair)
        else:
            k.v_cvt_f32_f16(low, pair)
            k.v_cvt_f32_f16_sdwa(high, pair, mods="dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1")


def pack(k: Kernel, dtype: str, values: Register, out: Register, constants: Constants) -> None:
    """Round float32 values to the nearest of a dtype, to even where two are as near, two to a register of ``out``."""
    if dtype == "f32":
        for source, target in zip(values, out, strict=True):
            k.v_mov_b32(target, source)
        return
    for i, target in enumerate(out):
        low, high = values[2 * i], values[2 * i + 1]
        if dtype == "f16":
            k.v_cvt_f16_f32(low, low)
            k.v_cvt_f16_f32(high, high)
            k.v_pack_b32_f16(target, low, high)
        elif k.arch == "gfx950":
            k.v_cvt_pk_bf16_f32(target, low, high)
        else:
            _pack_bf16(k, low, high, target, constants)


def _pack_bf16(k: Kernel, low: Register, high: Register, target: Register, constants: Constants) -> None:
    """gfx942 has no conversion to bfloat16: add half a unit of the last place, and keep NaN a NaN."""
    half = constants.scalar("half_unit", HALF_UNIT)
    quiet = constants.vector("quiet_nan", QUIET_NAN)
    with k.temporary("odd", 2) as odd, k.temporary("is_nan", 2, "s") as is_nan:
        k.v_cmp_u_f32(VCC, low, low)
        k.v_cmp_u_f32(is_nan, high, high)
        k.v_bfe_u32(odd[0], low, 16, 1)
        k.v_bfe_u32(odd[1], high, 16, 1)
        k.v_add3_u32(odd[0], low, odd[0], half)
        k.v_add3_u32(odd[1], high, odd[1], half)
        k.v_cndmask_b32(low, odd[0], quiet, VCC)
        k.v_cndmask_b32_e64(high, odd[1], quiet, is_nan)
        k.v_perm_b32(target, high, low, constants.scalar("high_halves", HIGH_HALVES))


def multiply(k: Kernel, out: Register, first: Register, second: Register) -> None:
    """Elementwise products of float32 pairs."""
    for i in range(0, len(out), 2):
        k.v_pk_mul_f32(out[i : i + 2], first[i : i + 2], second[i : i + 2])


def add(k: Kernel, out: Register, first: Register, second: Register) -> None:
    """Elementwise sums of float32 pairs."""
    for i in range(0, len(out), 2):
        k.v_pk_add_f32(out[i : i + 2], first[i : i + 2], second[i : i + 2])


def scale(k: Kernel, values: Register, factor: Register) -> None:
    """Multiply float32 values by one number, in a vector register."""
    for value in values:
        k.v_mul_f32(value, value, factor)


def join(k: Kernel, instruction: str, values: Sequence[Register]) -> None:
    """Combine registers into the first, as a tree."""
    step = 1
    while step < len(values):
        for i in range(0, len(values) - step, 2 * step):
            getattr(k, instruction)(values[i], values[i], values[i + step])
        step *= 2
