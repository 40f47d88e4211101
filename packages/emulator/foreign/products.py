"""Matrix products: D = A B^T, with scales."""

import numpy as np
from case import Case, Made
from formats import E2M1, E4M3FN, Slots, bf16, of_bf16, tiles


def bf16_product(m: int, n: int, k: int, split: int = 0):
    def make(random: np.random.Generator) -> Made:
        a, b = (bf16(random.standard_normal(s)) for s in ((m, k), (n, k)))
        d = np.zeros((m, n), "f4")
        slots = Slots().pointer(d, "D", split > 1).pointer(None).pointer(a, "A").pointer(b, "B").real(1, 0)
        slots.number(4 * n, 0, 4 * n, 0, 2 * k, 0, 2 * k, 0, m, n, k, split)
        return Made(slots, lambda: d, of_bf16(a).astype("f8") @ of_bf16(b).astype("f8").T)

    return make


def int8_product(m: int, n: int, k: int):
    def make(random: np.random.Generator) -> Made:
        a, b = (random.integers(-127, 128, s).astype("i1") for s in ((m, k), (n, k)))
        scale_a, scale_b = random.random(m).astype("f4") + 0.5, random.random(n).astype("f4") + 0.5
        bias = 100 * random.standard_normal(n).astype("f4")
        d = np.zeros((m, n), "u2")
        slots = Slots().pointer(d, "D", False).pointer(a, "A").pointer(tiles(b, 32, 32), "B")
        slots.pointer(scale_a, "scale A").pointer(scale_b, "scale B").pointer(bias, "bias")
        slots.number(m, n, k, k, k, 2 * n, 1)
        expected = a.astype("f8") @ b.astype("f8").T * scale_a[:, None] * scale_b + bias
        return Made(slots, lambda: of_bf16(d), expected)

    return make


def fp4_product(m: int, n: int, k: int, shuffled: bool = True):
    def make(random: np.random.Generator) -> Made:
        a, b = (random.integers(0, 256, (rows, k // 2)).astype("u1") for rows in (m, n))
        scales = [random.integers(125, 130, (-(-rows // 256) * 256, -(-k // 256) * 8)).astype("u1") for rows in (m, n)]
        d = np.zeros((-(-m // 256) * 256, n), "u2")
        slots = (
            Slots()
            .pointer(d, "D", False)
            .pointer(None)
            .pointer(a, "A")
            .pointer(tiles(b, 16, 32) if shuffled else b, "B")
            .real(1, 0)
        )
        slots.number(0, 0, n, 0, k, 0, k, 0, m, n, k)
        for s in scales:
            rows, columns = s.shape
            y = s.reshape(rows // 32, 2, 16, columns // 8, 2, 4).transpose(0, 3, 5, 2, 4, 1)
            slots.pointer(np.ascontiguousarray(y).reshape(s.shape), "scales")
        slots.number(scales[0].shape[1], 0, scales[1].shape[1], 0, 0)

        def values(codes, s):
            nibbles = np.stack([codes & 15, codes >> 4], -1).reshape(codes.shape[0], -1)
            return E2M1[nibbles] * np.repeat(2.0 ** (s[: codes.shape[0], : k // 32].astype("f8") - 127), 32, 1)

        expected = values(a, scales[0]) @ values(b, scales[1]).T
        return Made(slots, lambda: of_bf16(d[:m]), expected)

    return make


def fp8_block_product(m: int, n: int, k: int):
    """Blocks of 1x128 and 128x128; gfx950."""

    def make(random: np.random.Generator) -> Made:
        a, b = (
            random.integers(0, 0x60, s).astype("u1") | (random.integers(0, 2, s) << 7).astype("u1")
            for s in ((m, k), (n, k))
        )
        scale_a, scale_b = (
            random.random((k // 128, m)).astype("f4") + 0.5,
            random.random((n // 128, k // 128)).astype("f4") + 0.5,
        )
        d = np.zeros((m, n), "u2")
        slots = Slots().pointer(d, "D", False).pointer(a, "A").pointer(tiles(b, 16, 32), "B").pointer(None)
        slots.pointer(scale_a, "scale A").pointer(scale_b, "scale B").pointer(None).pointer(None).pointer(None)
        slots.number(k, n, m, 1, k, k, 2 * n, 0, 0, 0, 0, 0, 0).pointer(None)
        x = E4M3FN[a] * np.repeat(scale_a.T, 128, 1)
        w = E4M3FN[b] * np.repeat(np.repeat(scale_b, 128, 0), 128, 1)
        return Made(slots, lambda: of_bf16(d), x @ w.T)

    return make


CASES = [
    Case(
        "bf16 product",
        "gfx942",
        "bf16gemm/bf16gemm_outf32_tn_32x64_pf3.co",
        "40 x 128 x 256",
        bf16_product(40, 128, 256),
        (2, 2, 1),
        bound=1e-5,
    ),
    Case(
        "bf16 product",
        "gfx942",
        "bf16gemm/bf16gemm_outf32_tn_64x64_pf3.co",
        "64 x 128 x 256",
        bf16_product(64, 128, 256),
        (2, 1, 1),
        bound=1e-5,
    ),
    Case(
        "bf16 product",
        "gfx950",
        "bf16gemm/bf16gemm_outf32_tn_64x64_pf3.co",
        "64 x 128 x 256",
        bf16_product(64, 128, 256),
        (2, 1, 1),
        bound=1e-5,
    ),
    Case(
        "int8 product",
        "gfx942",
        "i8gemm/I8gemm_bf16_perTokenI8_BpreShuffle_128x128.co",
        "128 x 256 x 512",
        int8_product(128, 256, 512),
        (2, 1, 1),
    ),
    Case(
        "int8 product",
        "gfx942",
        "i8gemm/I8gemm_bf16_perTokenI8_BpreShuffle_192x128.co",
        "100 x 256 x 512",
        int8_product(100, 256, 512),
        (2, 1, 1),
    ),
    Case(
        "mxfp4 product",
        "gfx950",
        "f4gemm/f4gemm_bf16_per1x32Fp4_BpreShuffle_128x128.co",
        "128 x 128 x 512",
        fp4_product(128, 128, 512),
        (1, 1, 1),
    ),
    Case(
        "mxfp4 product",
        "gfx950",
        "f4gemm/f4gemm_bf16_per1x32Fp4_BpreShuffle_32x256.co",
        "40 x 256 x 512",
        fp4_product(40, 256, 512),
        (1, 2, 1),
    ),
    Case(
        "mxfp4 product",
        "gfx950",
        "f4gemm/f4gemm_bf16_per1x32Fp4_BpreShuffle_256x256.co",
        "256 x 256 x 512",
        fp4_product(256, 256, 512),
        (1, 1, 1),
    ),
    Case(
        "fp8 block product",
        "gfx950",
        "f8_block_scale_mi350_x128.co",
        "128 x 256 x 512",
        fp8_block_product(128, 256, 512),
        (1, 1, 1),
    ),
]
