"""Programs that work row by row: routing and normalisation."""

import numpy as np
from case import Case, Made
from formats import Slots, bf16, of_bf16


def topk(tokens: int, experts: int, k: int, renormalise: bool):
    def make(random: np.random.Generator) -> Made:
        gating = random.standard_normal((tokens, experts)).astype("f4")
        ids, weights = np.zeros((tokens, k), "i4"), np.zeros((tokens, k), "f4")
        slots = Slots().pointer(ids, "ids", False).pointer(weights, "weights", False).pointer(gating, "gating")
        slots.number(tokens, experts, k, renormalise, 4 * k)
        share = np.exp(gating.astype("f8"))
        share /= share.sum(1, keepdims=True)
        best = np.argsort(-share, 1, kind="stable")[:, :k]
        expected = np.take_along_axis(share, best, 1)
        if renormalise:
            expected = expected / expected.sum(1, keepdims=True)
        return Made(
            slots, lambda: np.concatenate([weights, ids / experts], 1), np.concatenate([expected, best / experts], 1)
        )

    return make


def layer_norm(rows: int):
    """It computes the mean and does not subtract it; what it stores, and values between, are truncated to bfloat16."""

    def make(random: np.random.Generator) -> Made:
        columns = 8192
        x, residual = (bf16(random.standard_normal((rows, columns))) for _ in range(2))
        weight, bias = (bf16(random.standard_normal(columns)) for _ in range(2))
        out, kept = np.zeros((rows, columns), "u2"), np.zeros((rows, columns), "u2")
        slots = Slots().pointer(out, "out", False).pointer(x, "x").pointer(weight, "weight").pointer(bias, "bias")
        slots.real(1e-5).number(rows, columns).pointer(kept, "residual out", False).pointer(residual, "residual")
        slots.pointer(None).pointer(None)
        total = of_bf16(x).astype("f8") + of_bf16(residual)
        deviation = np.sqrt(total.var(1, keepdims=True) + 1e-5)
        expected = total / deviation * of_bf16(weight) + of_bf16(bias)
        return Made(slots, lambda: of_bf16(np.stack([out, kept])), np.stack([expected, total]))

    return make


CASES = [
    Case(
        "top-k softmax",
        "gfx942",
        "topksoftmax/topksoftmax_4x128x8.co",
        "7 tokens, 128 experts, 8",
        topk(7, 128, 8, True),
        (2,),
        bound=1e-5,
    ),
    Case(
        "top-k softmax",
        "gfx942",
        "topksoftmax/topksoftmax_12x256x6.co",
        "25 tokens, 256 experts, 6",
        topk(25, 256, 6, False),
        (3,),
        bound=1e-5,
    ),
    Case("layer norm", "gfx942", "layer_norm.co", "4 rows of 8192", layer_norm(4), (2,), bound=1e-2),
]
