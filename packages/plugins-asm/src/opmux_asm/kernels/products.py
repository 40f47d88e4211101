"""Products: tiles of x times w transposed, with matrix instructions of 32x32, for `linear` and `scaled_linear`.

A workgroup of four waves computes a tile of y, each wave a quarter of it. The rows of w are the matrix instruction's
rows and those of x its columns, so that a lane holds four neighbours of a row of y.

LDS has two buffers. What fills one while the other is read differs: gfx950 loads 16 bytes a lane from memory straight
into LDS; gfx942, which loads 4 bytes so, goes through registers. Chunks of 16 bytes are swizzled within their rows, so
that the lanes that LDS serves in one cycle meet no bank twice.
"""

from opmux_asm.kernels.operands import Operands
from opmux_asm.kernels.product_loops import Loop
from opmux_asm.kernels.product_results import Result
from opmux_asm.writer import Kernel

FAMILIES = ("linear", "scaled_linear")
TILES = ((256, 256), (256, 128), (128, 256), (128, 128), (64, 128), (64, 64))
"""Rows of x and of w of a workgroup."""


def operands(family: str, arch: str) -> list[Operands]:
    """The dtypes of a family."""
    if family == "linear":
        return [Operands(arch, dtype, dtype) for dtype in ("bf16", "f16")]
    return [Operands(arch, dtype, result) for dtype in ("fp8", "int8") for result in ("bf16", "f16", "f32")]


def name_of(family: str, given: Operands, rows: int, columns: int) -> str:
    """A kernel's name."""
    return f"{family}_{given.name}_{rows}x{columns}"


def kernels(family: str, arch: str) -> list[Kernel]:
    """Every kernel of a family."""
    return [
        Product(name_of(family, given, *tile), given, *tile).write()
        for given in operands(family, arch)
        for tile in TILES
    ]


class Product(Loop, Result):
    """Writes one kernel."""

    def write(self) -> Kernel:
        """The kernel."""
        k = self.k
        self.given = k.load_arguments()
        self.begin()
        k.comment("The sums")
        self.clear()
        (self.through_registers if k.arch == "gfx942" else self.straight)()
        k.wait(vm=0, lgkm=0)
        k.free(self.frags, self.read_x, self.read_w, self.x_at, self.w_at)
        self.finish()
        return k

    def clear(self) -> None:
        """Sums of 0, in accumulation registers."""
        self.sums = self.k.a("sums", 16 * self.i_tiles * self.j_tiles)
        for one in self.sums:
            self.k.v_accvgpr_write_b32(one, 0)
