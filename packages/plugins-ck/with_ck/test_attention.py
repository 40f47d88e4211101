"""Attention: built, its machine code checked, run on the emulator."""

import pytest
import torch
from building import check_kernel, entry_of

import opmux
from opmux_ck.attention.choice import FEW_QUERIES, MANY_QUERIES
from opmux_ck.attention.configs import HEADS, AttentionConfig
from opmux_ck.attention.targets import attention_instance, attention_lse, attention_varlen, scoring_of
from opmux_emulator.codeobject.program import Program
from opmux_emulator.isa.matrix import shape_of
from opmux_emulator.jit_launches import on

BF16, FP16 = torch.bfloat16, torch.float16
Case = tuple[AttentionConfig, tuple[int, int], torch.dtype, bool, tuple[int, int]]
"""A tile, the sizes of heads, the dtype, whether causal, and the window."""
OPEN = (-1, -1)
DENSE: tuple[Case, ...] = (
    *((MANY_QUERIES[heads[0]], heads, BF16, True, OPEN) for heads in HEADS),
    (FEW_QUERIES[32], (32, 32), FP16, True, OPEN),
    (FEW_QUERIES[128], (128, 128), BF16, False, (9, 4)),
    (FEW_QUERIES[256], (256, 256), BF16, True, OPEN),
)
RAGGED: tuple[Case, ...] = (
    (FEW_QUERIES[64], (64, 64), BF16, False, OPEN),
    (MANY_QUERIES[128], (128, 128), BF16, True, OPEN),
)


def name_of(case: Case) -> str:
    """Heads, tile and mask."""
    config, heads, dtype, causal, window = case
    return f"{heads[0]}x{heads[1]}-{config.queries}x{config.keys}-{dtype}-{causal}-{window}".replace("torch.", "")


def check(case: Case, *, ragged: bool, lse: bool, cap: float = 0.0) -> None:
    """Besides what every kernel is checked for: matrix instructions of the tile's size, for both products."""
    config, heads, dtype, causal, window = case
    instance = attention_instance(dtype, *heads, scoring_of(None, cap, causal, window), config, ragged=ragged, lse=lse)
    check_kernel(instance)
    _, code = Program(entry_of(instance).code).code
    shapes = [shape for instruction in code if (shape := shape_of(instruction.name))]
    assert {shape.m for shape in shapes} == {config.mfma}
    products = sum(shape.m**2 * shape.k for shape in shapes)
    assert products >= config.queries * config.keys * sum(heads) // config.waves


@pytest.mark.parametrize("case", DENSE, ids=name_of)
def test_a_dense_batch(case) -> None:
    """Queries and keys that end in a tile, more queries than keys too, and heads that share keys."""
    config, (head_dim, value_dim), dtype, causal, window = case
    check(case, ragged=False, lse=True)
    for queries, keys in ((config.queries + 5, 2 * config.keys + 7), (config.queries + 5, 9)):
        q, k, v = (
            torch.randn(2, tokens, heads, dim).to(dtype)
            for tokens, heads, dim in ((queries, 2, head_dim), (keys, 1, head_dim), (keys, 1, value_dim))
        )
        options = {"scale": None, "causal": causal, "window": window, "softcap": 0.0}
        with on("gfx942"):
            found = attention_lse(q, k, v, None, **options, config=config)
        expected = opmux.attention_lse(q, k, v, **options, backend="reference")
        torch.testing.assert_close(found[0], expected[0], rtol=2**-6, atol=2e-2)
        torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("case", RAGGED, ids=name_of)
def test_a_ragged_batch(case) -> None:
    """Sequences without queries and without keys, and tokens of no sequence."""
    config, (head_dim, value_dim), dtype, causal, window = case
    check(case, ragged=True, lse=False)
    starts_q = torch.tensor([0, 3, 3, config.queries + 20, config.queries + 22], dtype=torch.int32)
    starts_k = torch.tensor([0, 40, 45, 190, 190], dtype=torch.int32)
    q, k, v = (
        torch.randn(tokens, heads, dim).to(dtype)
        for tokens, heads, dim in (
            (config.queries + 30, 4, head_dim),
            (200, 2, head_dim),
            (200, 2, value_dim),
        )
    )
    options = {"scale": 0.1, "causal": causal, "window": window, "softcap": 0.0}
    options |= {"max_seqlen_q": config.queries + 17, "max_seqlen_k": 145}
    with on("gfx942"):
        found = attention_varlen(q, k, v, starts_q, starts_k, None, **options, config=config)
    expected = opmux.attention_varlen(q, k, v, starts_q, starts_k, **options, backend="reference")
    torch.testing.assert_close(found, expected, rtol=2**-6, atol=2e-2)


def test_scores_with_a_cap() -> None:
    """Scores far beyond it, and a query that sees part of the keys."""
    config, options = FEW_QUERIES[128], {"scale": 0.5, "causal": True, "window": OPEN, "softcap": 5.0}
    check((config, (128, 128), BF16, True, OPEN), ragged=False, lse=True, cap=5.0)
    q, k, v = (torch.randn(1, tokens, heads, 128).to(BF16) for tokens, heads in ((20, 4), (70, 2), (70, 2)))
    with on("gfx942"):
        found = attention_lse(q, k, v, None, **options, config=config)
    expected = opmux.attention_lse(q, k, v, **options, backend="reference")
    torch.testing.assert_close(found[0], expected[0], rtol=2**-6, atol=2e-2)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-3)
