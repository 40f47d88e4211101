"""What products are made of: dtypes, matrix instructions, and how operands lie in LDS."""

from dataclasses import dataclass

from opmux_asm.kernels.numbers import BYTES

CHUNK = 16
"""Bytes that a lane loads from memory, and reads from LDS, at once."""


@dataclass(frozen=True)
class Operands:
    """The operands of a product, and its result.

    Attributes:
        arch: gfx942 or gfx950.
        dtype: of x and w: bf16, f16, fp8 (e4m3 in the arch's flavour) or int8.
        result: dtype of y.
    """

    arch: str
    dtype: str
    result: str

    @property
    def scaled(self) -> bool:
        """Whether sums are multiplied by a scale of their row and one of their column."""
        return self.dtype in ("fp8", "int8")

    @property
    def bytes(self) -> int:
        """Of an element of x and w."""
        return 1 if self.scaled else BYTES[self.dtype]

    @property
    def bias(self) -> str:
        """The dtype of a bias: float32 in scaled products."""
        return "f32" if self.scaled else self.dtype

    @property
    def row_bytes(self) -> int:
        """Of an operand's row in a buffer of LDS: gfx950 has room for whole lines of memory."""
        return 64 if self.arch == "gfx942" else 128

    @property
    def step_k(self) -> int:
        """Elements of k that an iteration takes, of which k is a multiple."""
        return 128 // self.bytes

    @property
    def chunks(self) -> int:
        """Of a row in a buffer."""
        return self.row_bytes // CHUNK

    @property
    def width(self) -> int:
        """Chunks that a lane gives to one matrix instruction, where that takes more than one."""
        return 2 if self.arch == "gfx950" and self.dtype == "fp8" else 1

    @property
    def instruction(self) -> str:
        """The matrix instruction (CDNA3 and CDNA4 ISA, section 7)."""
        names = {
            "gfx942": {
                "bf16": "f32_32x32x8_bf16", "f16": "f32_32x32x8_f16", "fp8": "f32_32x32x16_fp8_fp8",
                "int8": "i32_32x32x16_i8",
            },
            "gfx950": {
                "bf16": "f32_32x32x16_bf16", "f16": "f32_32x32x16_f16", "fp8": "f32_32x32x64_f8f6f4",
                "int8": "i32_32x32x32_i8",
            },
        }  # fmt: skip
        return f"v_mfma_{names[self.arch][self.dtype]}"

    @property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """Which registers of a lane's chunks each matrix instruction takes."""
        return ((0, 2), (2, 4)) if self.arch == "gfx942" else ((0, 4 * self.width),)

    @property
    def name(self) -> str:
        """What a kernel's name says of it."""
        return f"{self.dtype}_{self.result}" if self.scaled else self.dtype
