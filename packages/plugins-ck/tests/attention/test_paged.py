"""Attention over pages: the rules of a tile, the tile and the parts that a call gets, refusals, and the instances."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import opmux
from opmux.plugin import parse_arch
from opmux_ck.attention.configs import HEADS, misfit_of_heads
from opmux_ck.attention.paged_choice import FEW_ROWS, MANY_ROWS, SPACE, paged_config, paged_space
from opmux_ck.attention.paged_configs import MOST_PARTS, PagedConfig, misfit_of_page
from opmux_ck.attention.paged_instances import CombinedParts, PagedAttention
from opmux_ck.attention.paged_targets import (
    addressable_pages,
    paged_instances,
    parts_of,
    scoring_of_pages,
)

GFX942 = parse_arch("gfx942")
TILE = FEW_ROWS[0]
BF16 = torch.bfloat16


def meta(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def features(**given: Any) -> dict[str, Any]:
    """Of a decode of one sequence, with what is given instead."""
    usual = {"head_dim": 128, "value_dim": 128, "page_size": 64, "heads": 8, "kv_heads": 2, "causal": True}
    buckets = {"bucket(batch)": 0, "bucket(max_seqlen_q)": 0, "bucket(max_seqlen_k)": 15}
    return {**usual, "window": (-1, -1), **buckets, **given}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"parts": 0}, "parts = 0 is not from 1 to 32"),
        ({"parts": 33}, "parts = 33 is not from 1 to 32"),
        ({"mfma": 4}, "mfma = 4 is not 16 or 32"),
        (
            {"keys": 32, "key_step": 16},
            "keys = 32 is not key_step = 16: CK looks up a page after each step",
        ),
        (
            {"keys": 64, "key_step": 64},
            "keys = 64 is more than 32: the compiler spills scalar registers",
        ),
    ],
)
def test_what_no_instance_can_be(fields, reason) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        replace(TILE, **fields)
    assert str(caught.value) == reason


def test_the_keys_of_a_tile_lie_in_one_page() -> None:
    assert misfit_of_page(TILE, 64) is None
    assert misfit_of_page(TILE, 48) == "keys = 32 does not divide page_size = 48"


@pytest.mark.parametrize("page_size", [16, 48, 64, 256])
@pytest.mark.parametrize("queries", [0, 6])
@pytest.mark.parametrize("heads", HEADS)
def test_what_a_call_gets_fits(heads, queries, page_size) -> None:
    given = {"head_dim": heads[0], "value_dim": heads[1], "page_size": page_size, "bucket(max_seqlen_q)": queries}
    found = paged_config(GFX942, features(**given))
    space = list(paged_space(GFX942, features(**given)))
    assert space
    assert len(set(space)) == len(space)
    for one in (found, *space):
        assert misfit_of_heads(one, *heads) is None
        assert misfit_of_page(one, page_size) is None


def test_a_decode_gets_one_wave_and_as_many_parts_as_fill_the_device() -> None:
    assert paged_config(GFX942, features()) == replace(FEW_ROWS[0], parts=MOST_PARTS)
    assert paged_config(GFX942, features(**{"bucket(batch)": 5})) == replace(FEW_ROWS[0], parts=4)
    assert paged_config(GFX942, features(**{"bucket(max_seqlen_k)": 9})) == replace(FEW_ROWS[0], parts=2)
    assert paged_config(GFX942, features(**{"bucket(max_seqlen_k)": 8})) == FEW_ROWS[0]


def test_heads_that_share_keys_fill_a_tile_where_nothing_is_masked() -> None:
    many = {"heads": 32, "kv_heads": 1, "bucket(max_seqlen_k)": 8}
    assert paged_config(GFX942, features(**many)) == MANY_ROWS[0]
    assert paged_config(GFX942, features(**many, window=(9, 0))) == FEW_ROWS[0]


def test_the_space_repeats_no_tile() -> None:
    assert len(set(SPACE)) == len(SPACE)


def explained(**given: Any) -> str:
    """Why the record takes a call on eight heads, or does not."""
    options = {"max_seqlen_q": 1, "max_seqlen_k": 100}
    options |= {name: given.pop(name) for name in ("softcap", "scale", "max_seqlen_q") if name in given}
    tensors = {
        "q": meta(3, 8, 128), "k_cache": meta(9, 64, 2, 128), "v_cache": meta(9, 64, 2, 128),
        "cu_seqlens_q": meta(4, dtype=torch.int32), "seq_lens": meta(3, dtype=torch.int32),
        "block_table": meta(3, 4, dtype=torch.int32), **given,
    }  # fmt: skip
    explanation = opmux.explain(opmux.paged_attention, **tensors, **options, arch="gfx942")
    (candidate,) = (c for c in explanation.candidates if c.name == "ck")
    return candidate.reason


def caches(page_size: int, dtype: torch.dtype = BF16) -> dict[str, torch.Tensor]:
    return {name: meta(9, page_size, 2, 128, dtype=dtype) for name in ("k_cache", "v_cache")}


def test_explain_shows_the_instance() -> None:
    assert explained(softcap=30.0) == (
        "priority 9; queries 16, keys 32, dim_step 32, key_step 32, waves 1, mfma 16, parts 1 "
        "(heuristic: no tuned record for gfx942); "
        "launches paged_attention_bf16_d128x128_b16x32_k32x32_w1_x16x16x16_cap"
    )


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (caches(1), "page_size = 1 is not a multiple of 16, the fewest keys of a tile, which lie in one page"),
        (caches(64, torch.float8_e4m3fnuz), "dtypes differ: q bfloat16, k_cache float8_e4m3fnuz"),
        ({"sinks": meta(8)}, "sinks is not supported"),
        ({"scale": 0.0}, "scale = 0.0 is not positive"),
        ({"max_seqlen_q": 1 << 20}, "max_seqlen_q = 1048576 is more than 524288"),
        ({"k_cache": meta(9, 64, 2, 132)[..., :128]}, "k_cache is not aligned to 16 bytes"),
    ],
)
def test_refusals(given, reason) -> None:
    assert explained(**given) == reason


def made(config: PagedConfig, *, queries: int = 1, lse: bool = False, window: tuple[int, int] = (-1, -1)) -> list[Any]:
    scoring = scoring_of_pages(None, 0.0, True, window, queries)
    return list(paged_instances(BF16, (3, 8, 128, 128), scoring, config, lse=lse))


def test_one_query_of_a_sequence_needs_no_mask() -> None:
    assert [one.masked for one in made(TILE)] == [False]
    assert [one.masked for one in made(TILE, queries=2)] == [True]
    assert [one.masked for one in made(TILE, window=(7, 0))] == [True]


def test_parts_are_combined_by_a_kernel_of_its_own() -> None:
    first, second = made(replace(TILE, parts=8))
    assert (first.name, second.name) == (
        "paged_attention_bf16_d128x128_b16x32_k32x32_w1_x16x16x16_parts_lse",
        "combined_parts_bf16_d128_p32",
    )
    assert first == made(replace(TILE, parts=4), lse=True)[0]
    assert (
        "OPMUX_CK_PAGED_ATTENTION(ck_tile::bf16_t, float, 16, 32, 32, 128, 32, 128, 1, 16, 16, false, false, true)"
        in (first.text())
    )
    assert second.text() == (
        '// combined_parts_bf16_d128_p32\n#include "paged_attention.h"\n\n'
        "OPMUX_CK_COMBINED_PARTS(ck_tile::bf16_t, 128, 5, false)\n"
    )


def test_the_names_tell_the_instances_apart() -> None:
    instances = {
        PagedAttention(x, dim, dim, config, masked, capped, lse)
        for x in ("bf16", "fp16")
        for dim in (64, 128)
        for config in (*FEW_ROWS, replace(TILE, parts=2))
        for masked in (False, True)
        for capped in (False, True)
        for lse in (False, True)
    } | {CombinedParts(x, 128, lse) for x in ("bf16", "fp16") for lse in (False, True)}
    assert len({one.name for one in instances}) == len({one.text().partition("\n")[2] for one in instances})
    assert len({one.name for one in instances}) == len(instances)


def test_results_that_a_launch_cannot_address_are_not_cut() -> None:
    config = replace(TILE, parts=8)
    assert parts_of(config, 1 << 14, 32, 128) == 1
    assert parts_of(config, 1 << 10, 32, 128) == 8


def test_pages_that_a_launch_cannot_address_are_copied() -> None:
    near = meta(9, 64, 2, 128)
    assert addressable_pages(near) is near
    far = torch.empty_strided((2, 64, 2, 128), (1 << 32, 256, 128, 1), dtype=BF16, device="meta")
    assert addressable_pages(far).is_contiguous()
