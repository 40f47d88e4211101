"""Paged attention with its keys cut among programs."""

from collections.abc import Callable

import pytest
import torch

import opmux
from opmux.bench.data import Data
from opmux.plugin import parse_arch
from opmux_triton.launch import recording
from opmux_triton.paged import configs, targets


@pytest.mark.long
def test_splits_are_joined_from_what_was_written_alone(interpret: Callable[[str], None]) -> None:
    interpret("paged/interpreted_splits.py")


@pytest.mark.long
def test_equal_shares_are_joined_from_what_was_written_alone(interpret: Callable[[str], None]) -> None:
    interpret("paged/interpreted_shares.py")


@pytest.mark.parametrize(
    ("kv_heads", "group", "batch", "reach", "new", "kernels"),
    [
        (1, 8, 8, 4096, 1, ["attend_shares", "join"]),
        (2, 64, 500, 1024, 1, ["attend_shares", "join"]),
        (1, 128, 8, 4096, 1, ["attend_shares", "join"]),
        (4, 8, 8, 4096, 1, ["attend", "combine"]),
        (1, 8, 2000, 4096, 1, ["attend"]),
        (1, 8, 8, 512, 1, ["attend", "combine"]),
        (1, 8, 8, 4096, 2, ["attend", "combine"]),
    ],
)
def test_a_decode_step_of_few_kv_heads_is_cut_into_equal_shares(
    kv_heads: int, group: int, batch: int, reach: int, new: int, kernels: list[str]
) -> None:
    """Not where there are many tiles to fill the device with, few keys, or several new tokens."""
    config = configs.halves_config(
        parse_arch("sm_90"), {"page_size": 16, "head_dim": 64, "value_dim": 64, "bucket(batch)": 3}
    )
    cache = torch.empty(batch * reach // 16, 16, kv_heads, 64, dtype=torch.bfloat16, device="meta")
    q = cache.new_empty(batch * new, kv_heads * group, 64)
    rows = [cache.new_empty(shape, dtype=torch.int32) for shape in ((batch + 1,), (batch,), (batch, reach // 16))]
    options = {"scale": None, "causal": True, "window": (-1, -1), "softcap": 0.0, "layout": "nhd"}
    with recording("sm_90") as noted:
        targets.paged_attention(
            q, cache, cache, *rows, None, config=config, max_seqlen_q=new, max_seqlen_k=reach, **options
        )
    assert [launch.kernel.__name__ for launch in noted.launches] == kernels


@pytest.mark.gpu
@pytest.mark.memcheck
@pytest.mark.parametrize(("kv_heads", "group"), [(1, 8), (2, 3), (1, 40), (1, 128)], ids=str)
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_equal_shares_of_uneven_lengths(head_dim: int, kv_heads: int, group: int) -> None:
    lengths = [5000, 1, 700, 2047, 64, 3333, 1024, 12000]
    data = Data.seeded(torch.device("cuda"), torch.bfloat16)
    q = data.normal(len(lengths), kv_heads * group, head_dim)
    k_cache, v_cache = (data.normal(len(lengths) * 750, 16, kv_heads, head_dim) for _ in range(2))
    table = torch.randperm(len(lengths) * 750, device="cuda").to(torch.int32).view(len(lengths), -1)
    given = (q, k_cache, v_cache, data.offsets(len(lengths), 1), data.ints(lengths), table)
    bounds = {"max_seqlen_q": 1, "max_seqlen_k": max(lengths)}
    found = opmux.paged_attention_lse(*given, **bounds, backend="triton")
    wide = (q.float(), k_cache.float(), v_cache.float(), *given[3:])
    expected = opmux.paged_attention_lse(*wide, **bounds, backend="reference")
    apart = (found[0].float() - expected[0]).norm(dim=-1) / expected[0].norm(dim=-1)
    assert apart.max() < 1e-2
    torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-4)


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
