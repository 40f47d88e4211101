"""What is launched for attention's backward on sm_90."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from planted_launches import made

from opmux.plugin import parse_arch
from opmux_triton.attention.backward import hopper_targets
from opmux_triton.attention.backward.configs import hopper_config
from opmux_triton.launch import Launch, Notes, noting, recording

OPTIONS: dict[str, Any] = {"scale": None, "causal": True, "window": (-1, -1), "softcap": 0.0}


def launches(
    mask: tuple[bool, ...] = (True, True, True, False), odd: bool = False, dim: int = 128, shares: int = 0,
    **changes: Any,
) -> list[Launch]:  # fmt: skip
    config = hopper_config(parse_arch("sm_90"), {"head_dim": dim, "value_dim": dim})
    config = replace(config, shares=shares)
    q, k = made(2, 300, 8, dim), made(2, 500, 2, dim)
    v = made(2, 500, 2, dim + 1)[..., :dim] if odd else k
    lse = made(2, 8, 300, dtype=torch.float32)
    with recording("sm_90") as recorded:
        hopper_targets.attention_backward(
            q, q, k, v, q, lse, None, None, output_mask=mask, config=config, **(OPTIONS | changes)
        )
    return recorded.launches


def test_the_gluon_kernel_computes_every_product_and_the_portable_ones_repair() -> None:
    found = launches()
    assert [launch.kernel.__name__ for launch in found] == [
        "row_statistics", "attention_backward", "sum_of_shares", "sum_of_queries", "keys_values", "queries_of",
    ]  # fmt: skip
    products = found[1]
    assert products.kernel.is_gluon()
    assert [launch.meta["REPAIR"] for launch in found[4:]] == [True, True]
    assert [launch.meta["NOTED"] for launch in found[4:]] == [128, 64]


@pytest.mark.parametrize("shares", [1, 2, 3, 8])
def test_programs_that_share_a_tile_of_keys_write_float32_parts(shares: int) -> None:
    found = launches(shares=shares)
    products = found[1]
    assert products.grid == (-(-500 // 128) * 2 * 2 * shares,)
    parts = products.arguments[2]
    assert parts.shape == ((2, 500, 2, 128) if shares == 1 else (2, 500, 2, shares, 128))
    assert parts.dtype == (torch.bfloat16 if shares == 1 else torch.float32)
    assert ("sum_of_shares" in [launch.kernel.__name__ for launch in found]) == (shares > 1)


def test_the_tiles_of_all_pairs_run_longest_first_where_programs_are_few() -> None:
    few = launches(shares=1)[1]
    section = few.arguments[16]
    assert section == 2 * 2


@pytest.mark.parametrize(("dim", "width"), [(64, 64), (72, 128), (96, 128), (128, 128)])
def test_heads_are_computed_in_64_or_128_columns(dim: int, width: int) -> None:
    _, products, sums, *_ = launches(dim=dim, shares=1)
    assert [(launch.meta["COLUMNS"], launch.meta["HEAD_DIM"]) for launch in (products, sums)] == [(dim, width)] * 2
    assert products.meta["ROWS"] * width == 8192


def test_without_a_mask_there_is_nothing_to_repair() -> None:
    found = launches(causal=False, shares=1)
    assert [launch.kernel.__name__ for launch in found] == ["row_statistics", "attention_backward", "sum_of_queries"]


@pytest.mark.parametrize(("dim", "width"), [(64, 64), (80, 128), (128, 128)])
def test_scratch_memory_is_bounded(monkeypatch: pytest.MonkeyPatch, dim: int, width: int) -> None:
    """Sums of the gradients of queries, two numbers a row, notes, and parts only where they fill the device."""
    monkeypatch.setattr(noting, "notes", notes := Notes())
    launches(dim=dim, shares=1)
    taken = sum(4 * part.numel() for part in notes.scratch)
    rows = 2 * 8 * 384  # 300 queries, in whole blocks of at most 128
    assert taken <= rows * (4 * width + 8) + 4 * (2 * 2 * 4 + 2 * 8 * 5)
    notes.scratch.clear()
    launches(dim=dim, shares=8)
    parts = [part for part in notes.scratch if part.dim() == 5]
    assert [part.shape for part in parts] == [(2, 500, 2, 8, dim)] * 2


@pytest.mark.parametrize(
    "changes", [{"mask": (True, True, False, False)}, {"odd": True}, {"scale": 0.0}], ids=["mask", "odd", "scale"]
)
def test_what_does_not_suit_goes_to_the_portable_kernels(changes: dict[str, Any]) -> None:
    assert not any(launch.kernel.is_gluon() for launch in launches(**changes))
