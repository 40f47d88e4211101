"""The kernels of rows: a workgroup holds a row in registers, so that memory is read once and written once."""

from collections.abc import Sequence

from opmux_asm.kernels.numbers import BYTES, Constants, add, multiply, pack, scale, unpack
from opmux_asm.kernels.quantizing import GROUP, Codes
from opmux_asm.kernels.recipes import TILES, Recipe, name_of, recipes
from opmux_asm.kernels.reductions import over_group
from opmux_asm.kernels.roots import reciprocal_root
from opmux_asm.kernels.rows import Access, descriptor
from opmux_asm.writer import VCC, Argument, Kernel, Register

ARGUMENTS = (
    Argument("x", "p"), Argument("residual", "p"), Argument("weight", "p"), Argument("bias", "p"), Argument("y", "p"),
    Argument("scales", "p"), Argument("sum", "p"), Argument("x_stride", "I"), Argument("residual_stride", "I"),
    Argument("columns", "I"), Argument("inverse_columns", "f"), Argument("eps", "f"), Argument("weight_offset", "f"),
)  # fmt: skip
"""The arguments of every kernel of rows; strides in bytes; pointers that a kernel does not use are null."""
LOG2_E = 0xBFB8AA3B
"""-log2(e) as float32."""


def kernels(family: str, arch: str) -> list[Kernel]:
    """Every kernel of a family."""
    return [
        RowKernel(arch, family, recipe, waves, chunks).write() for recipe in recipes(family) for waves, chunks in TILES
    ]


class RowKernel:
    """Writes one kernel of rows."""

    def __init__(self, arch: str, family: str, recipe: Recipe, waves: int, chunks: int) -> None:
        self.recipe, self.tile = recipe, recipe.tile(waves, chunks)
        about = f"{family} of {recipe}.\nA workgroup is a row of up to {self.tile.columns} columns."
        name = name_of(family, recipe, waves, chunks)
        self.k = Kernel(name, arch, self.tile.threads, ARGUMENTS, about)

    def write(self) -> Kernel:
        """The kernel."""
        k, recipe = self.k, self.recipe
        self.given, self.constants = k.load_arguments(), Constants(k)
        self._begin()
        values = self._values()
        if recipe.norm:
            values = self._normed(values)
        if not recipe.codes:
            k.comment("Round and store")
            for chunk, value in enumerate(values):
                pack(k, recipe.x, value, self.packed[chunk], self.constants)
                self.access.store(recipe.x, self.target, chunk, self.packed[chunk])
            return k
        k.comment("Quantise and store")
        codes = Codes(k, recipe.codes, self.access, self.constants)
        (codes.by_row if recipe.block == "token" else codes.by_block)(values, self.scales, self.target)
        return k

    def _bytes(self, dtype: str) -> Register:
        """Bytes of a row of a dtype."""
        size = BYTES[dtype]
        if size not in self.sizes:
            self.sizes[size] = self.k.s(f"row_bytes{size}")
            self.k.s_mul_i32(self.sizes[size], self.given["columns"], size)
        return self.sizes[size]

    def _begin(self) -> None:
        """Buffers, and everything that is read."""
        k, recipe, given = self.k, self.recipe, self.given
        self.sizes: dict[int, Register] = {}
        k.comment("Buffers of this row, whose lengths are their bounds")
        size, row = self._bytes(recipe.x), k.group
        x_row = descriptor(k, "x_row", given["x"], size, row, given["x_stride"])
        result = "q8" if recipe.codes else recipe.x
        self.target = descriptor(k, "y_row", given["y"], self._bytes(result), row, self._bytes(result))
        if recipe.codes:
            self._scales_row()
        k.comment("Load what is read")
        self.access = Access(k, self.tile)
        self.packed = self.access.load(recipe.x, x_row, "x_packed")
        if recipe.gates:
            k.s_add_u32(x_row[0], x_row[0], size)
            k.s_addc_u32(x_row[1], x_row[1], 0)
            self.others = self.access.load(recipe.x, x_row, "up_packed")
        if recipe.adds:
            other = descriptor(k, "residual_row", given["residual"], size, row, given["residual_stride"])
            self.sum_row = descriptor(k, "sum_row", given["sum"], size, row, size)
            self.others = self.access.load(recipe.x, other, "residual_packed")
        if recipe.norm:
            gains = descriptor(k, "gains", given["weight"], self._bytes(recipe.weight), None, None)
            self.gains = self.access.load(recipe.weight, gains, "gain")
        if recipe.biased:
            shifts = descriptor(k, "shifts", given["bias"], self._bytes(recipe.weight), None, None)
            self.shifts = self.access.load(recipe.weight, shifts, "shift")

    def _scales_row(self) -> None:
        """The scales of this row: one, or one for 128 columns."""
        k = self.k
        size = k.s("scale_bytes")
        if self.recipe.block == "token":
            k.s_mov_b32(size, 4)
        else:
            k.s_add_u32(size, self.given["columns"], GROUP - 1)
            k.s_lshr_b32(size, size, 7)
            k.s_lshl_b32(size, size, 2)
        self.scales = descriptor(k, "scales_row", self.given["scales"], size, k.group, size)

    def _values(self) -> list[Register]:
        """What is normed, quantised or stored, in float32."""
        k, recipe = self.k, self.recipe
        k.comment("In float32")
        values = []
        for chunk, packed in enumerate(self.packed):
            value = k.v(f"value{chunk}", self.tile.per)
            k.wait_for(packed)
            unpack(k, recipe.x, packed, value)
            if recipe.gates or recipe.adds:
                with k.temporary("other", self.tile.per) as other:
                    k.wait_for(self.others[chunk])
                    unpack(k, recipe.x, self.others[chunk], other)
                    if recipe.gates:
                        self._silu(value)
                        multiply(k, value, value, other)
                    else:
                        self._sum(chunk, value, other)
            values.append(value)
        return values

    def _sum(self, chunk: int, value: Register, other: Register) -> None:
        """The sum with the residual, rounded to its dtype, stored, and taken up again as it was rounded."""
        k, dtype, rounded = self.k, self.recipe.x, self.others[chunk]
        add(k, value, value, other)
        pack(k, dtype, value, rounded, self.constants)
        self.access.store(dtype, self.sum_row, chunk, rounded)
        unpack(k, dtype, rounded, value)

    def _silu(self, value: Register) -> None:
        """``g / (1 + exp(-g))``."""
        k = self.k
        with k.temporary("sigmoid", len(value)) as sigmoid:
            for one, g in zip(sigmoid, value, strict=True):
                k.v_mul_f32(one, LOG2_E, g)
            for one in sigmoid:
                k.v_exp_f32(one, one)
            for one in sigmoid:
                k.v_add_f32(one, 1.0, one)
            for one in sigmoid:
                k.v_rcp_f32(one, one)
            multiply(k, value, value, sigmoid)

    def _normed(self, values: Sequence[Register]) -> list[Register]:
        """The norm of the row, times the weight."""
        k, recipe, given = self.k, self.recipe, self.given
        if recipe.norm == "layer":
            self._centre(values)
        k.comment("The sum of squares")
        inverse, sums = k.v("inverse_root"), k.v("squares", 2)
        k.v_mov_b32(sums[0], 0)
        k.v_mov_b32(sums[1], 0)
        for value in values:
            for i in range(0, len(value), 2):
                k.v_pk_fma_f32(sums, value[i : i + 2], value[i : i + 2], sums)
        k.v_add_f32(sums[0], sums[0], sums[1])
        over_group(k, "v_add_f32", sums[0], inverse)
        reciprocal_root(k, inverse, given["inverse_columns"], given["eps"])
        k.comment("Times the weight")
        offset = k.v("offset")
        k.v_mov_b32(offset, given["weight_offset"])
        for chunk, value in enumerate(values):
            scale(k, value, inverse)
            with k.temporary("gain_values", self.tile.per) as gain:
                k.wait_for(self.gains[chunk])
                unpack(k, recipe.weight, self.gains[chunk], gain)
                if recipe.norm == "rms":
                    for one in gain:
                        k.v_add_f32(one, one, offset)
                multiply(k, value, value, gain)
                if recipe.biased:
                    k.wait_for(self.shifts[chunk])
                    unpack(k, recipe.weight, self.shifts[chunk], gain)
                    add(k, value, value, gain)
        return list(values)

    def _centre(self, values: Sequence[Register]) -> None:
        """Subtract the mean; what lies past the row stays 0."""
        k, given = self.k, self.given
        k.comment("Subtract the mean")
        mean, sums = k.v("mean"), k.v("sums", 2)
        k.v_mov_b32(sums[0], 0)
        k.v_mov_b32(sums[1], 0)
        for value in values:
            for i in range(0, len(value), 2):
                k.v_pk_add_f32(sums, value[i : i + 2], sums)
        k.v_add_f32(sums[0], sums[0], sums[1])
        over_group(k, "v_add_f32", sums[0], mean)
        k.v_mul_f32(mean, given["inverse_columns"], mean)
        with k.temporary("subtrahend") as subtrahend:
            for chunk, value in enumerate(values):
                k.v_cmp_gt_u32(VCC, self._bytes(self.recipe.x), self.access.of(self.recipe.x)[chunk])
                k.v_cndmask_b32(subtrahend, 0, mean, VCC)
                for one in value:
                    k.v_sub_f32(one, one, subtrahend)
        k.free(sums)
