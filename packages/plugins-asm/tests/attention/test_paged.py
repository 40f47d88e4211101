"""Paged attention on the emulator, through the native launcher, against the reference."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import opmux
from opmux_asm.archs import FP8
from opmux_emulator.jit_launches import on

TOLERANCE = {torch.bfloat16: 2**-6, torch.float16: 2**-9}
PAGES = 48


@pytest.fixture(params=["gfx942", "gfx950"], autouse=True)
def arch(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each arch in turn."""
    with on(request.param):
        yield request.param


def made(
    new: list[int],
    lengths: list[int],
    heads: int,
    kv_heads: int,
    page_size: int = 16,
    dtype: torch.dtype = torch.bfloat16,
) -> tuple[Any, ...]:
    """The arguments without scales; pages in any order, and NaN past the end of each sequence."""
    q = torch.randn(sum(new), heads, 128).to(dtype)
    caches = [torch.full((PAGES, page_size, kv_heads, 128), torch.nan).to(dtype) for _ in range(2)]
    table = torch.randperm(PAGES).int()[: PAGES // len(new) * len(new)].view(len(new), -1)
    for row, length in zip(table, lengths, strict=True):
        for at in range(length):
            for cache in caches:
                cache[row[at // page_size], at % page_size] = torch.randn(kv_heads, 128).to(dtype)
    starts = torch.tensor([0, *new]).cumsum(0).int()
    return q, *caches, starts, torch.tensor(lengths).int(), table


def compare(given: tuple[Any, ...], *, new: int = 1, **options: Any) -> None:
    """Results and logarithms, against those of the reference."""
    options |= {"max_seqlen_q": new, "max_seqlen_k": int(given[4].max())}
    out, lse = opmux.paged_attention_lse(*given, **options, backend="asm")
    expected, logs = opmux.paged_attention_lse(*given, **options, backend="reference")
    tolerance = TOLERANCE[given[0].dtype]
    torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(lse, logs, rtol=1e-5, atol=1e-3)
    assert torch.equal(opmux.paged_attention(*given, **options, backend="asm"), out)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("heads", [(16, 1), (6, 2), (3, 3)], ids=str)
def test_groups_of_queries(heads: tuple[int, int], dtype: torch.dtype) -> None:
    compare(made([1, 1, 1], [37, 1, 200], *heads, dtype=dtype))


@pytest.mark.parametrize("page_size", [32, 128, 1024])
def test_pages(page_size: int) -> None:
    compare(made([1, 1], [130, 64], 4, 1, page_size))


@pytest.mark.parametrize("causal", [False, True])
def test_several_new_tokens(causal: bool) -> None:
    """As in speculative decoding; one sequence has none."""
    compare(made([3, 0, 2], [50, 10, 17], 4, 2), new=4, causal=causal)


def test_tokens_of_no_sequence_are_zero() -> None:
    q, *rest = made([1, 1], [20, 30], 2, 1)
    compare((torch.cat([q, torch.randn(3, 2, 128).bfloat16()]), *rest))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("scales", [(None, None), (2, 1), (1, 2)], ids=str)
def test_codes(arch: str, scales: tuple[int | None, int | None], dtype: torch.dtype) -> None:
    q, k_cache, v_cache, *rest = made([1, 1], [70, 33], 8, 2, dtype=dtype)
    codes = getattr(torch, FP8[arch][1])
    caches = (cache.float().to(codes) for cache in (k_cache, v_cache))
    given = [None if n is None else torch.rand(n) + 0.5 for n in scales]
    compare((q, *caches, *rest, None, None, *given))


@pytest.mark.parametrize("scale", [-0.3, 0.0, 1.5])
def test_scales_of_any_sign(scale: float) -> None:
    compare(made([1], [90], 2, 1), scale=scale)


def test_strides() -> None:
    q, k_cache, v_cache, *rest = made([1, 1], [40, 60], 4, 2)
    both = torch.stack([k_cache, v_cache], 1)
    wide = torch.cat([q, q], 1)[:, ::2]
    compare((wide, both[:, 0], both[:, 1], *rest))
