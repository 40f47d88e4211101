"""Run by `test_paged` under TRITON_INTERPRET=1: keys cut among programs, whatever their memory held before."""

import itertools
import sys

import torch
from torch import Tensor

import opmux
from opmux.arch import parse_arch
from opmux_triton.paged import configs, targets

torch.manual_seed(0)
HEADS, KV_HEADS, DIM, PAGE, LONGEST = 4, 2, 16, 16, 300
FEATURES = {"page_size": PAGE, "head_dim": DIM, "value_dim": DIM, "bucket(batch)": 2}
CONFIG = configs.halves_config(parse_arch("sm_90"), FEATURES) | {"decode_block_n": 16, "decode_least": 16}
LENGTHS = ([5, LONGEST, 64, 2], [130, 0, 17, 260])
PAST = 2
"""Tokens past the last sequence."""


def poisoned(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Memory that shows whether a sum was taken that nobody had written."""
    return like.new_full(shape, float("nan"), dtype=torch.float32)


targets.scratch = poisoned
for longest, lengths, window, programs in itertools.product((1, 2), LENGTHS, (-1, 40), (8, 1000)):
    counts = torch.tensor([0, 1, int(lengths[1] > 0), 1, longest])
    offsets = counts.cumsum(0).to(torch.int32)
    q = torch.randn(int(offsets[-1]) + PAST, HEADS, DIM, dtype=torch.float16)
    k_cache, v_cache = torch.randn(2, 128, PAGE, KV_HEADS, DIM, dtype=torch.float16)
    v_cache[3, 4, 0, 5] = float("nan")
    table = torch.randperm(128)[: 4 * 20].view(4, 20).to(torch.int32)
    given = (q, k_cache, v_cache, offsets, torch.tensor(lengths, dtype=torch.int32), table, torch.randn(HEADS))
    bounds = {"max_seqlen_q": longest, "max_seqlen_k": LONGEST}
    options = {"scale": None, "causal": True, "window": (window, -1), "softcap": 0.0, "layout": "nhd", **bounds}
    found = targets.paged_attention_lse(*given, config=CONFIG | {"decode_programs": programs}, **options)
    expected = opmux.paged_attention_lse.reference(*given, **options)
    for own, right in zip(found, expected, strict=True):
        what = f"{longest} {lengths} {window} {programs}"
        torch.testing.assert_close(own, right, rtol=5e-3, atol=5e-3, equal_nan=True, msg=lambda m, w=what: f"{w}: {m}")
sys.stdout.write("all equal")
