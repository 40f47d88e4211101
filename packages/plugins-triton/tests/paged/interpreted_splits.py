"""Run by `paged/test_targets` under TRITON_INTERPRET=1: keys cut among programs, whatever their memory held before."""

import itertools
import sys
from dataclasses import replace

import torch
from torch import Tensor

import opmux
from opmux.arch import parse_arch
from opmux_triton.paged import configs, targets

torch.manual_seed(0)
PAGE, LONGEST = 16, 300
CONFIG = configs.halves_config(
    parse_arch("sm_90"), {"page_size": PAGE, "head_dim": 16, "value_dim": 16, "bucket(batch)": 2}
)


def changed(programs: int, rows: int | None = None, splits: int | None = None) -> configs.PagedConfig:
    """The config with short splits of the keys, of which there are as many as ``programs`` allows."""
    decode = replace(CONFIG.decode, block_n=16, least=16, programs=programs, rows=rows or CONFIG.decode.rows)
    return replace(CONFIG, decode=decode, combine=replace(CONFIG.combine, splits=splits or CONFIG.combine.splits))


LENGTHS = ([5, LONGEST, 64, 2], [130, 0, 17, 260])
PAST = 2
"""Tokens past the last sequence."""


def poisoned(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Memory that shows whether a sum was read that had not been written."""
    return like.new_full(shape, float("nan"), dtype=torch.float32)


def check(
    longest: int, lengths: list[int], window: int, changes: dict[str, int],
    heads: tuple[int, int] = (4, 2), dims: tuple[int, int] = (16, 16), sinks: bool = True, reach: int = LONGEST,
) -> None:  # fmt: skip
    """Both results against the reference, of sequences with one new token or none, the last with ``longest``."""
    counts = torch.tensor([0, *(int(length > 0) for length in lengths[:-1]), longest])
    offsets = counts.cumsum(0).to(torch.int32)
    q = torch.randn(int(offsets[-1]) + PAST, heads[0], dims[0], dtype=torch.float16)
    k_cache, v_cache = (torch.randn(128, PAGE, heads[1], dim, dtype=torch.float16) for dim in dims)
    v_cache[3, 4, 0, 5] = float("nan")
    pages = -(-max(lengths) // PAGE)
    table = torch.randperm(128)[: len(lengths) * pages].view(len(lengths), pages).to(torch.int32)
    given = (q, k_cache, v_cache, offsets, torch.tensor(lengths, dtype=torch.int32), table)
    bounds = {"max_seqlen_q": longest, "max_seqlen_k": reach}
    options = {"scale": None, "causal": True, "window": (window, -1), "softcap": 0.0, "layout": "nhd", **bounds}
    sink = torch.randn(heads[0]) if sinks else None
    found = targets.paged_attention_lse(*given, sink, config=changed(**changes), **options)
    expected = opmux.paged_attention_lse.reference(*given, sink, **options)
    what = f"{longest} {lengths} {window} {changes} {heads} {dims}"
    for own, right in zip(found, expected, strict=True):
        torch.testing.assert_close(own, right, rtol=5e-3, atol=5e-3, equal_nan=True, msg=lambda m: f"{what}: {m}")


targets.scratch = poisoned
for longest, lengths, window, programs in itertools.product((1, 2), LENGTHS, (-1, 40), (8, 1000)):
    check(longest, lengths, window, {"programs": programs})
# joined in three turns and four, and in larger ones; of one sequence there are few, of another none or one
check(1, [40, LONGEST, 0, 7], -1, {"programs": 1000, "splits": 8})
check(1, [LONGEST, 30], 250, {"programs": 1000, "splits": 4})
check(1, [40, LONGEST, 0, 7], -1, {"programs": 1000, "splits": 4})
check(1, [90], -1, {"programs": 1000}, heads=(2, 1), reach=80 * 16)
check(1, [80 * 16], -1, {"programs": 1000}, heads=(2, 1), reach=80 * 16)
# a group in several tiles of rows, values of another width, no sinks
check(1, [70, 3], -1, {"programs": 1000, "rows": 16}, heads=(40, 1), dims=(16, 24), sinks=False)
sys.stdout.write("all equal")
