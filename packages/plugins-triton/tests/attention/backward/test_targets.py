"""What is launched for attention's backward."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from planted_launches import made

from opmux.plugin import parse_arch
from opmux_triton.attention.backward import targets
from opmux_triton.attention.backward.configs import backward_config
from opmux_triton.launch import Launch, recording

OPTIONS: dict[str, Any] = {"scale": None, "causal": False, "window": (-1, -1), "softcap": 0.0}


def run(
    mask: tuple[bool, ...] = (True,) * 4, arch: str = "sm_80", shares: int = 1, **changes: Any
) -> tuple[list[Launch], Any]:
    config = replace(backward_config(parse_arch(arch), {"head_dim": 64, "value_dim": 64}), shares=shares)
    q, k = made(2, 300, 8, 64), made(2, 500, 2, 64)
    lse, sinks = made(2, 8, 300, dtype=torch.float32), made(8)
    with recording(arch) as recorded:
        grads = targets.attention_backward(
            q, q, k, k, q, lse, sinks, None, output_mask=mask, config=config, **(OPTIONS | changes)
        )
    return recorded.launches, grads


def names(launches: list[Launch]) -> list[str]:
    return [launch.kernel.__name__ for launch in launches]


def test_each_gradient_has_its_kernel() -> None:
    launches, grads = run()
    assert names(launches) == ["row_statistics", "sum_of_sinks", "keys_values", "queries_of"]
    assert [g.shape for g in grads] == [(2, 300, 8, 64), (2, 500, 2, 64), (2, 500, 2, 64), (8,)]


@pytest.mark.parametrize("mask", list(itertools.product((True, False), repeat=4)), ids=str)
def test_gradients_that_are_not_wanted_are_empty_and_skipped(mask: tuple[bool, ...]) -> None:
    launches, grads = run(mask)
    assert [g.numel() > 0 for g in grads] == list(mask)
    assert ("queries_of" in names(launches)) == mask[0]
    assert ("keys_values" in names(launches)) == (mask[1] or mask[2])
    assert ("sum_of_sinks" in names(launches)) == mask[3]
    assert ("row_statistics" in names(launches)) == any(mask)
    for launch in launches:
        if launch.kernel.__name__ == "keys_values":
            assert (launch.meta["WANTS_K"], launch.meta["WANTS_V"]) == mask[1:3]


def test_under_a_mask_tiles_that_are_not_finite_are_computed_again() -> None:
    launches, _ = run(causal=True)
    assert names(launches)[2:] == ["keys_values", "keys_values", "queries_of", "queries_of"]
    assert [launch.meta["REPAIR"] for launch in launches[2:]] == [False, True, False, True]
    noted = launches[2].meta["NOTED"]
    assert launches[3].meta["NOTED"] == noted == launches[2].meta["BLOCK_N"]
    assert launches[2].grid == (-(-500 // noted) * 2 * 2,)


@pytest.mark.parametrize("mask", [(True, True, True, False), (True, True, False, False), (False, False, True, False)])
def test_shares_of_the_wanted_gradients_are_added_after_the_repair(mask: tuple[bool, ...]) -> None:
    launches, grads = run(mask, shares=4, causal=True)
    of_keys = [launch for launch in launches if launch.kernel.__name__ in ("keys_values", "sum_of_shares")]
    assert names(of_keys) == ["keys_values", "keys_values", "sum_of_shares"]
    assert of_keys[0].grid == (-(-500 // of_keys[0].meta["BLOCK_N"]) * 2 * 2 * 4,)
    wanted = [grad.numel() > 0 for grad in grads[1:3]]
    assert [part.shape for part in of_keys[2].arguments[:2]] == [(2, 500, 2, 4, 64) if w else (0,) for w in wanted]
    assert of_keys[2].grid == (sum(wanted) * -(-2 * 500 * 2 // of_keys[2].meta["ROWS"]),)


def test_few_programs_share_tiles_without_being_told_to() -> None:
    launches, _ = run(shares=0)
    assert "sum_of_shares" in names(launches)
