"""Mixtures of experts: both linear layers of the chosen experts in one program."""

import math

import numpy as np
from case import Case, Made
from formats import E4M3FNUZ, Array, Slots, bf16, of_bf16, tiles

BLOCK = 32
"""Tokens of one expert that a workgroup takes; the last block of each is filled up with a token number past the end."""


def routed(random: np.random.Generator, tokens: int, experts: int, k: int) -> tuple[Array, ...]:
    """Chosen experts and their weights; the same sorted by expert: slots, weights, expert of each block; slots used."""
    ids = np.argsort(random.random((tokens, experts)), 1)[:, :k].astype("i4")
    weights = random.random((tokens, k)).astype("f4")
    slots, shares, blocks = [], [], []
    for expert in range(experts):
        token, choice = np.nonzero(ids == expert)
        filled = -(-len(token) // BLOCK) * BLOCK
        slots.append(np.concatenate([token | choice << 24, np.full(filled - len(token), tokens | k << 24)]))
        shares.append(np.concatenate([weights[token, choice], np.zeros(filled - len(token))]))
        blocks += [expert] * (filled // BLOCK)
    used = np.array([sum(map(len, slots)), tokens], "i4")
    return (
        ids,
        weights,
        np.concatenate(slots).astype("i4"),
        np.concatenate(shares).astype("f4"),
        np.array(blocks, "i4"),
        used,
    )


erf = np.vectorize(math.erf)


def fused(tokens: int, dim: int, inner: int, experts: int, k: int, kind: str, tile: int):
    """``bf16``: one matrix up and gelu; ``fp8``: gate and up with silu, scales by token and by row of the weights."""

    def make(random: np.random.Generator) -> Made:
        ids, weights, slots_, shares, blocks, used = routed(random, tokens, experts, k)
        width = inner if kind == "bf16" else 2 * inner
        if kind == "bf16":
            x, up, down = (
                bf16(random.standard_normal(s) * scale)
                for s, scale in (((tokens, dim), 1), ((experts, width, dim), 0.1), ((experts, dim, inner), 0.1))
            )
            xf, upf, downf = (of_bf16(a).astype("f8") for a in (x, up, down))
            scales = [None] * 3
        else:
            x, up, down = (
                (random.integers(0x20, 0x48, s) | random.integers(0, 2, s) << 7).astype("u1")
                for s in ((tokens, dim), (experts, width, dim), (experts, dim, inner))
            )
            scales = [
                (random.random(s) * 0.05 + 0.01).astype("f4")
                for s in ((tokens, 1), (experts, width, 1), (experts, dim, 1))
            ]
            xf, upf, downf = (E4M3FNUZ[a] * s for a, s in zip((x, up, down), scales, strict=True))
        out = np.zeros((tokens, dim), "u2")
        slots = Slots().pointer(out, "out").pointer(x, "x").pointer(tiles(up, 16, 32), "up").pointer(used, "used")
        slots.pointer(tiles(down, 16, 32), "down").pointer(scales[0], "scale x").pointer(scales[1], "scale up").pointer(
            scales[2], "scale down"
        )
        slots.pointer(None).pointer(slots_, "slots").pointer(shares, "shares").pointer(blocks, "blocks")
        size = x.itemsize
        slots.number(dim, inner, tokens, experts, dim * size, dim * size, inner * size, dim * 2)
        slots.number(
            width * dim * size,
            dim * inner * size,
            0 if scales[1] is None else 4 * width,
            0 if scales[2] is None else 4 * dim,
            4 * inner,
            k,
            0,
            -(-inner // tile),
        )
        expected = np.zeros((tokens, dim))
        for token in range(tokens):
            for expert, weight in zip(ids[token], weights[token], strict=True):
                h = upf[expert] @ xf[token]
                h = (
                    h * (1 + erf(h / math.sqrt(2))) / 2
                    if kind == "bf16"
                    else h[:inner] / (1 + np.exp(-h[:inner])) * h[inner:]
                )
                expected[token] += weight * (downf[expert] @ h)
        return Made(slots, lambda: of_bf16(out), expected)

    return make


# The fp8 programs round what lies between the two layers to fp8 again, numpy does not.
CASES = [
    Case(
        "fused experts",
        "gfx942",
        "fmoe_b16.co",
        "5 tokens of 1024, 2 of 4 experts of 1024",
        fused(5, 1024, 1024, 4, 2, "bf16", 512),
        (2, 4),
    ),
    Case(
        "fused experts",
        "gfx942",
        "fmoe/gelu/fmoe_bf16_noquantBf16_g1u0_atm_inlv_gelu_1tg_32x512.co",
        "5 tokens of 1024, 2 of 4 experts of 1024",
        fused(5, 1024, 1024, 4, 2, "bf16", 512),
        (2, 4),
    ),
    Case(
        "fused experts, fp8",
        "gfx942",
        "fmoe/silu/fmoe_bf16_pertokenFp8_g1u1_silu_1tg_32x128.co",
        "5 tokens of 512, 2 of 4 experts of 256",
        fused(5, 512, 256, 4, 2, "fp8", 128),
        (2, 4),
        bound=6e-2,
    ),
    Case(
        "fused experts, fp8",
        "gfx942",
        "fmoe/silu/fmoe_bf16_pertokenFp8_g1u1_vs_silu_1tg_32x256.co",
        "5 tokens of 512, 2 of 4 experts of 256",
        fused(5, 512, 256, 4, 2, "fp8", 256),
        (1, 4),
        bound=6e-2,
    ),
]
