"""Attention: dense, paged, and over a compressed cache (MLA)."""

import math

import numpy as np
from case import Case, Made
from formats import E4M3FNUZ, Array, Slots, bf16, of_bf16

LOG2E = math.log2(math.e)


def softmax(scores: Array) -> tuple[Array, Array]:
    """Row-wise shares, and the logarithms of the sums."""
    most = scores.max(-1, keepdims=True)
    e = np.exp(scores - most)
    total = e.sum(-1, keepdims=True)
    return e / total, np.log(total[..., 0]) + most[..., 0]


def dense(
    batch: int, heads: int, kv_heads: int, queries: int, keys: int, causal: bool, tile: int = 256, width: int = 128
):
    def make(random: np.random.Generator) -> Made:
        q = bf16(random.standard_normal((batch, queries, heads, width)))
        k = bf16(random.standard_normal((batch, keys, kv_heads, width)))
        v = bf16(random.standard_normal((batch, keys, kv_heads, 128)))
        out, lse = np.zeros((batch, queries, heads, 128), "u2"), np.zeros((batch, heads, queries), "f4")
        scale = 1 / math.sqrt(width)
        slots = (
            Slots()
            .pointer(out, "out", False)
            .pointer(q, "q")
            .pointer(k, "k")
            .pointer(v, "v")
            .pointer(lse, "lse", False)
            .real(scale)
        )

        def strides(x: Array) -> tuple[int, int, int]:
            return x.strides[1], x.strides[2], x.strides[0]

        step = q.strides[1]
        slots.number(queries, step, tile * step, q.strides[2], q.strides[0], heads // kv_heads, *strides(k))
        slots.number(5 if not causal or heads % 8 == 0 else 3, 1, keys, width, 128, heads, *strides(v), *strides(out))
        slots.pointer(None).pointer(None).number(4 * queries).pointer(None).pointer(None)
        qf, kf, vf = (of_bf16(x).astype("f8") for x in (q, k, v))
        kf, vf = (np.repeat(x, heads // kv_heads, 2) for x in (kf, vf))
        scores = np.einsum("bqhd,bkhd->bhqk", qf, kf) * scale
        if causal:
            scores = np.where(np.arange(keys)[None] <= np.arange(queries)[:, None] + keys - queries, scores, -np.inf)
        share, logs = softmax(scores)
        expected = np.einsum("bhqk,bkhd->bqhd", share, vf)
        return Made(
            slots,
            lambda: np.concatenate([of_bf16(out).ravel(), lse.ravel()]),
            np.concatenate([expected.ravel(), logs.ravel()]),
        )

    return make


def paged(batch: int, kv_heads: int, group: int, lengths: list[int], kind: str):
    """Decoding over pages of 16: keys ``[page, head, 128 / x, 16, x]``, values ``[page, head, 16 / x, 128, x]``."""

    def make(random: np.random.Generator) -> Made:
        pages = sum(-(-n // 16) for n in lengths) + 3
        order = random.permutation(pages).astype("i4")
        widest = max(-(-n // 16) for n in lengths)
        blocks, at = np.zeros((batch, widest), "i4"), 0
        for row, n in zip(blocks, lengths, strict=True):
            count = -(-n // 16)
            row[:count] = order[at : at + count]
            at += count
        context = np.array(lengths, "i4")
        q = bf16(random.standard_normal((batch, kv_heads * group, 128)))
        out = np.zeros_like(q)
        if kind == "bf16":
            k, v = (bf16(random.standard_normal((pages, kv_heads, 16, 128))) for _ in range(2))
            inner, scales = 8, [None, None]
            kf, vf = of_bf16(k).astype("f8"), of_bf16(v).astype("f8")
        else:
            shape = (pages, kv_heads, 16, 128)
            k, v = (
                (random.integers(0x20, 0x48, shape) | random.integers(0, 2, shape) << 7).astype("u1") for _ in range(2)
            )
            inner = 16
            scales = [(random.random((pages, kv_heads, 16)) + 0.5).astype("f4") for _ in range(2)]
            kf, vf = (E4M3FNUZ[x] * s[..., None] for x, s in zip((k, v), scales, strict=True))
        stored_k = np.ascontiguousarray(k.reshape(pages, kv_heads, 16, 128 // inner, inner).swapaxes(2, 3))
        stored_v = np.ascontiguousarray(v.reshape(pages, kv_heads, 16 // inner, inner, 128).swapaxes(3, 4))
        slots = Slots().pointer(out, "out", False).pointer(q, "q").pointer(stored_k, "k").pointer(stored_v, "v")
        slots.pointer(blocks, "block table").pointer(context, "lengths").pointer(scales[0], "scale k").pointer(
            scales[1], "scale v"
        )
        slots.real(LOG2E / math.sqrt(128)).number(
            widest, kv_heads, q.strides[0], stored_k.strides[0], stored_k.strides[1], group
        )
        slots.pointer(None)
        expected = np.zeros(q.shape)
        for b, n in enumerate(lengths):
            keys, values = (x[blocks[b]].transpose(1, 0, 2, 3).reshape(kv_heads, -1, 128)[:, :n] for x in (kf, vf))
            heads = of_bf16(q[b]).astype("f8").reshape(kv_heads, group, 128)
            share, _ = softmax(np.einsum("hgd,hkd->hgk", heads, keys) / math.sqrt(128))
            expected[b] = np.einsum("hgk,hkd->hgd", share, values).reshape(-1, 128)
        return Made(slots, lambda: of_bf16(out), expected)

    return make


def compressed(lengths: list[int], heads: int, splits: int):
    """MLA's first stage of decoding: keys of 576, values their first 512; a result and a logarithm for each split.

    With one split, the program for 128 heads writes the final result instead: bfloat16, packed, and no logarithms.
    """

    def make(random: np.random.Generator) -> Made:
        batch, total = len(lengths), sum(lengths)
        q = bf16(random.standard_normal((batch, heads, 576)))
        cache = bf16(random.standard_normal((total + 5, 1, 1, 576)))
        pages = random.permutation(total + 5)[:total].astype("i4")
        starts = np.cumsum([0, *lengths]).astype("i4")
        last = np.ones(batch, "i4")
        of_queries = np.arange(batch + 1, dtype="i4")
        of_splits = (np.arange(batch + 1) * splits).astype("i4")
        out, lse = np.zeros((batch, splits, heads, 512), "f4"), np.zeros((batch, splits, heads, 1), "f4")
        unused = np.zeros((batch, heads, 512), "u2")
        slots = Slots().pointer(out, "out", False).pointer(lse, "lse", False).pointer(q, "q").pointer(cache, "cache")
        slots.pointer(starts, "starts").pointer(pages, "pages").pointer(last, "last").real(1 / math.sqrt(576))
        slots.number(heads, splits, q.strides[0], cache.strides[0], 0)
        slots.pointer(of_queries, "queries").pointer(of_splits, "splits").pointer(unused, "final").pointer(
            None
        ).pointer(None)
        slots.number(splits)
        expected = np.zeros((batch, heads, 513))
        for b in range(batch):
            kv = of_bf16(cache[pages[starts[b] : starts[b + 1]], 0, 0]).astype("f8")
            share, logs = softmax(of_bf16(q[b]).astype("f8") @ kv.T / math.sqrt(576))
            expected[b] = np.concatenate([share @ kv[:, :512], logs[:, None]], 1)

        def final() -> Array:
            return of_bf16(out.view("u2").ravel()[: batch * heads * 512]).reshape(batch, heads, 512)

        def got() -> Array:
            weight = np.exp(lse - lse.max(1, keepdims=True)).astype("f8")
            whole = (out * weight).sum(1) / weight.sum(1)
            return np.concatenate([whole, np.log(weight.sum(1)) + lse.max(1)], -1)

        if splits == 1 and heads == 128:
            return Made(slots, final, expected[..., :512])
        return Made(slots, got, expected)

    return make


CASES = [
    Case(
        "paged attention",
        "gfx942",
        "pa/pa_bf16_noquant_gqa8_1tg_4w.co",
        "2 x 2 heads x 8, lengths 37 and 200",
        paged(2, 2, 8, [37, 200], "bf16"),
        (2, 2),
    ),
    Case(
        "paged attention",
        "gfx942",
        "pa/pa_bf16_noquant_gqa16_1tg_4w.co",
        "2 x 1 head x 16, lengths 1 and 300",
        paged(2, 1, 16, [1, 300], "bf16"),
        (1, 2),
    ),
    Case(
        "paged attention",
        "gfx950",
        "pa/pa_bf16_noquant_gqa8_1tg_4w.co",
        "2 x 2 heads x 8, lengths 37 and 200",
        paged(2, 2, 8, [37, 200], "bf16"),
        (2, 2),
    ),
    Case(
        "paged attention, fp8",
        "gfx942",
        "pa/pa_bf16_pertokenFp8_gqa8_2tg_4w.co",
        "2 x 2 heads x 8, lengths 37 and 200",
        paged(2, 2, 8, [37, 200], "fp8"),
        (2, 2),
        bound=5e-2,
    ),
    Case(
        "paged attention, fp8",
        "gfx942",
        "pa/pa_bf16_pertokenFp8_gqa8_2tg_4w_uhp.co",
        "2 x 2 heads x 8, lengths 37 and 200",
        paged(2, 2, 8, [37, 200], "fp8"),
        (2, 2),
        bound=5e-2,
    ),
    Case(
        "dense attention",
        "gfx942",
        "fmha_v3_fwd/MI300/fwd_hd128_bf16_rtne.co",
        "1 x 2 heads, 256 x 256",
        dense(1, 2, 1, 256, 256, False),
        (1, 2, 1),
        512,
    ),
    Case(
        "dense attention, causal",
        "gfx942",
        "fmha_v3_fwd/MI300/fwd_hd128_bf16_causal_rtne.co",
        "1 x 2 heads, 512 x 512",
        dense(1, 2, 1, 512, 512, True),
        (1, 2, 1),
        512,
    ),
    Case(
        "dense attention",
        "gfx950",
        "fmha_v3_fwd/fwd_hd128_bf16.co",
        "1 x 2 heads, 256 x 256",
        dense(1, 2, 1, 256, 256, False),
        (1, 2, 1),
        512,
    ),
    Case(
        "dense attention, 192",
        "gfx950",
        "fmha_v3_fwd/fwd_hd192_hd128_bf16.co",
        "1 x 2 heads, 128 x 256",
        dense(1, 2, 1, 128, 256, False, 128, 192),
        (1, 2, 1),
        256,
    ),
    Case(
        "MLA",
        "gfx942",
        "mla/mla_dec_stage1_bf16_a16w16_subQ16_mqa16.co",
        "2 x 16 heads, lengths 70 and 130, 2 splits",
        compressed([70, 130], 16, 2),
        (1, 2, 2),
    ),
    Case(
        "MLA",
        "gfx950",
        "mla/mla_dec_stage1_bf16_a16w16_subQ16_mqa16.co",
        "2 x 16 heads, lengths 70 and 130, 2 splits",
        compressed([70, 130], 16, 2),
        (1, 2, 2),
    ),
    Case(
        "MLA, 128 heads",
        "gfx942",
        "mla/mla_dec_stage1_bf16_a16w16_subQ128_mqa128.co",
        "2 x 128 heads, lengths 70 and 130, 2 splits",
        compressed([70, 130], 128, 2),
        (1, 2, 2),
    ),
    Case(
        "MLA, 128 heads",
        "gfx942",
        "mla/mla_dec_stage1_bf16_a16w16_subQ128_mqa128.co",
        "2 x 128 heads, lengths 70 and 130, 1 split",
        compressed([70, 130], 128, 1),
        (1, 2, 1),
    ),
    Case(
        "MLA, 128 heads",
        "gfx950",
        "mla/mla_dec_stage1_bf16_a16w16_subQ128_mqa128.co",
        "2 x 128 heads, lengths 70 and 130, 2 splits",
        compressed([70, 130], 128, 2),
        (1, 2, 2),
    ),
    Case(
        "MLA, 128 heads",
        "gfx950",
        "mla/mla_dec_stage1_bf16_a16w16_subQ128_mqa128.co",
        "2 x 128 heads, lengths 70 and 130, 1 split",
        compressed([70, 130], 128, 1),
        (1, 2, 1),
    ),
]
