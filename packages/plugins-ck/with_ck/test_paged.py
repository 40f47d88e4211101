"""Attention over pages: built, its machine code checked, run on the emulator."""

from dataclasses import replace

import pytest
import torch
from building import check_kernel, entry_of

import opmux
from opmux_ck.attention.paged_choice import FEW_ROWS, MANY_ROWS
from opmux_ck.attention.paged_configs import PagedConfig
from opmux_ck.attention.paged_targets import paged_attention_lse, paged_instances, scoring_of_pages
from opmux_emulator.codeobject.program import Program
from opmux_emulator.isa.matrix import shape_of
from opmux_emulator.jit_launches import on

BF16, FP16 = torch.bfloat16, torch.float16
Case = tuple[PagedConfig, int, tuple[int, int], torch.dtype, tuple[int, ...], dict[str, object]]
"""A tile, the page size, the sizes of heads, the dtype, the new tokens of sequences, and options."""
CASES: tuple[Case, ...] = (
    (replace(FEW_ROWS[0], parts=4), 64, (128, 128), BF16, (1, 1, 0, 1), {}),
    (FEW_ROWS[0], 32, (128, 128), BF16, (1, 1, 0, 1), {"softcap": 4.0}),
    (replace(FEW_ROWS[1], parts=3), 16, (64, 64), FP16, (3, 1, 0, 9), {"window": (40, 0)}),
    (MANY_ROWS[0], 64, (128, 128), BF16, (70, 1, 0, 30), {}),
    (MANY_ROWS[0], 32, (192, 128), BF16, (70, 1, 0, 30), {"causal": False}),
    (MANY_ROWS[2], 16, (256, 256), BF16, (40, 1, 0, 30), {}),
)
LENGTHS = (100, 1, 37, 300)


def name_of(case: Case) -> str:
    """Heads, page, tile and dtype."""
    config, page, heads, dtype, _, options = case
    tile = f"{config.queries}x{config.keys}x{config.parts}"
    return f"{heads[0]}x{heads[1]}-p{page}-{tile}-{dtype}-{'-'.join(options)}".replace("torch.", "")


@pytest.mark.parametrize(
    ("case", "arch"),
    [*((case, "gfx942") for case in CASES), (CASES[0], "gfx950"), (CASES[3], "gfx950")],
    ids=lambda one: one if isinstance(one, str) else name_of(one),
)
def test_pages(case, arch) -> None:
    """Pages in any order, sequences that end within one, NaN past their ends, heads that share keys."""
    torch.manual_seed(0)
    config, page, (head_dim, value_dim), dtype, new, given = case
    options = {"scale": None, "causal": True, "window": (-1, -1), "softcap": 0.0, **given}
    used = [-(-length // page) for length in LENGTHS]
    order = torch.randperm(sum(used) + 2)
    k, v = (torch.full((len(order), page, 2, dim), torch.nan, dtype=dtype) for dim in (head_dim, value_dim))
    table = torch.full((len(new), max(used) + 1), 1 << 30, dtype=torch.int32)
    for sequence, (pages, length) in enumerate(zip(used, LENGTHS, strict=True)):
        table[sequence, :pages], order = order[:pages].int(), order[pages:]
        for number in range(pages):
            tokens = min(length - number * page, page)
            for cache in (k, v):
                cache[table[sequence, number], :tokens] = torch.randn(tokens, 2, cache.shape[-1]).to(dtype)
    starts = torch.tensor([0, *new]).cumsum(0).int()
    q = torch.randn(int(starts[-1]) + 2, 8, head_dim).to(dtype)
    lengths, most = torch.tensor(LENGTHS, dtype=torch.int32), {"max_seqlen_q": max(new), "max_seqlen_k": 300}
    scoring = scoring_of_pages(None, options["softcap"], options["causal"], options["window"], max(new))
    for instance in paged_instances(dtype, (*q.shape, value_dim), scoring, config, lse=True):
        check_kernel(instance, arch)
        if instance.kernel == "paged_attention":
            _, code = Program(entry_of(instance, arch).code).code
            products = sum(shape.m**2 * shape.k for line in code if (shape := shape_of(line.name)))
            assert products >= config.queries * config.keys * (head_dim + value_dim) // config.waves
    tensors = q, k, v, starts, lengths, table
    with on(arch):
        found = paged_attention_lse(*tensors, None, None, None, None, **most, **options, layout="nhd", config=config)
    expected = opmux.paged_attention_lse(*tensors, **most, **options, backend="reference")
    torch.testing.assert_close(found[0], expected[0], rtol=2**-6, atol=2e-2)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-3)
