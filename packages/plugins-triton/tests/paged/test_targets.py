"""Paged attention with its keys cut among programs."""

from collections.abc import Callable

import pytest
import torch

import opmux
from opmux.bench.cases import Data


def test_splits_are_joined_from_what_was_written_alone(interpret: Callable[[str], None]) -> None:
    interpret("paged/interpreted_splits.py")


@pytest.mark.gpu
@pytest.mark.memcheck
@pytest.mark.parametrize("lengths", [[131072], [70], [40000, 3]], ids=str)
@pytest.mark.parametrize("kv_heads", [1, 8])
def test_splits_of_very_long_sequences_are_joined_in_turns(kv_heads: int, lengths: list[int]) -> None:
    """Room for 131072 keys: of one sequence and key/value head that is 264 splits on an H200, of two 132 each."""
    reach, page = 131072, 64
    pages = reach // page * len(lengths)
    data = Data.seeded(torch.device("cuda"), torch.bfloat16)
    q = data.normal(len(lengths), 8, 128)
    k_cache, v_cache = (data.normal(pages, page, kv_heads, 128) for _ in range(2))
    offsets = torch.arange(len(lengths) + 1, dtype=torch.int32, device="cuda")
    table = torch.randperm(pages, device="cuda").to(torch.int32).view(len(lengths), -1)
    given = (q, k_cache, v_cache, offsets, torch.tensor(lengths, dtype=torch.int32, device="cuda"), table)
    bounds = {"max_seqlen_q": 1, "max_seqlen_k": reach}
    found = opmux.paged_attention_lse(*given, **bounds, backend="triton")
    wide = (q.float(), k_cache.float(), v_cache.float(), *given[3:])
    expected = opmux.paged_attention_lse(*wide, **bounds, backend="reference")
    apart = (found[0].float() - expected[0]).norm(dim=-1) / expected[0].norm(dim=-1)
    assert apart.max() < 1e-2
    torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-4)
