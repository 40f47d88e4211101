"""`rms_norm`: a workgroup holds a row, read once."""

from opmux_asm.kernels.numbers import BYTES, Constants, multiply, pack, scale, unpack
from opmux_asm.kernels.reductions import over_group
from opmux_asm.kernels.rows import ACCESS, Access, Tile, descriptor
from opmux_asm.writer import VCC, Argument, Kernel, Register

FAMILY = "rms_norm"
DTYPES = (("bf16", "bf16"), ("f16", "f16"), ("f32", "f32"), ("bf16", "f32"), ("f16", "f32"))
"""Dtypes of x and weight."""
TILES = ((1, 1), (4, 1), (4, 2), (4, 4), (16, 2), (16, 4))
"""Waves of a workgroup and accesses of a thread."""
ARGUMENTS = (
    Argument("x", "p"), Argument("weight", "p"), Argument("y", "p"), Argument("x_stride", "I"), Argument("hidden", "I"),
    Argument("inverse_hidden", "f"), Argument("eps", "f"), Argument("weight_offset", "f"),
)  # fmt: skip
SMALL, SMALL_FACTOR, BACK = 0x0D800000, 0x5F800000, 0x4F800000
"""As float32: 2**-100, below which a mean square is multiplied by 2**64 for v_rsq_f32, and 2**32, which undoes that."""


def name_of(x: str, weight: str, waves: int, chunks: int) -> str:
    """A kernel's name."""
    return f"{FAMILY}_{x}_{weight}_w{waves}c{chunks}"


def kernels(arch: str) -> list[Kernel]:
    """Every kernel of the family."""
    return [rms_norm(arch, x, weight, waves, chunks) for x, weight in DTYPES for waves, chunks in TILES]


def rms_norm(arch: str, x: str, weight: str, waves: int, chunks: int) -> Kernel:
    """One kernel."""
    tile = Tile(waves, chunks, ACCESS // BYTES[x])
    about = (
        f"y = x * rsqrt(mean(x * x) + eps) * (weight + weight_offset), x and y {x}, weight {weight}.\n"
        f"A workgroup is a row of up to {tile.columns} columns, a multiple of {tile.per}."
    )
    k = Kernel(name_of(x, weight, waves, chunks), arch, tile.threads, ARGUMENTS, about)
    given, constants = k.load_arguments(), Constants(k)

    k.comment("Buffers of this row, whose lengths are their bounds")
    x_bytes, weight_bytes = k.s("x_bytes"), k.s("weight_bytes")
    k.s_mul_i32(x_bytes, given["hidden"], BYTES[x])
    k.s_mul_i32(weight_bytes, given["hidden"], BYTES[weight])
    row = k.group
    source = descriptor(k, "x_row", given["x"], x_bytes, row, given["x_stride"])
    gains = descriptor(k, "gains", given["weight"], weight_bytes, None, None)
    target = descriptor(k, "y_row", given["y"], x_bytes, row, x_bytes)

    k.comment("Load the row, then the weight, which is needed later")
    access = Access(k, tile)
    packed = access.load(x, source, "packed")
    packed_weight = access.load(weight, gains, "gain")

    k.comment("The sum of squares")
    values, sums = [], k.v("sums", 2)
    k.v_mov_b32(sums[0], 0)
    k.v_mov_b32(sums[1], 0)
    for chunk in range(chunks):
        k.wait_for(packed[chunk])
        value = k.v(f"x{chunk}", tile.per)
        unpack(k, x, packed[chunk], value)
        values.append(value)
        for i in range(0, tile.per, 2):
            k.v_pk_fma_f32(sums, value[i : i + 2], value[i : i + 2], sums)
    k.v_add_f32(sums[0], sums[0], sums[1])
    inverse = k.v("inverse_rms")
    over_group(k, "v_add_f32", sums[0], inverse)
    reciprocal_root(k, inverse, given["inverse_hidden"], given["eps"])

    k.comment("Scale, round, store")
    offset = k.v("offset")
    k.v_mov_b32(offset, given["weight_offset"])
    with k.temporary("gain_values", tile.per) as gain:
        for chunk, value in enumerate(values):
            k.wait_for(packed_weight[chunk])
            unpack(k, weight, packed_weight[chunk], gain)
            for one in gain:
                k.v_add_f32(one, one, offset)
            scale(k, value, inverse)
            multiply(k, value, value, gain)
            pack(k, x, value, packed[chunk], constants)
            access.store(x, target, chunk, packed[chunk])
    return k


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
