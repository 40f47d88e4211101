"""What is launched for attention's backward on sm_90 where heads are wider than 128."""

from typing import Any

import pytest
import torch
from planted_launches import made

from opmux.plugin import parse_arch
from opmux_triton.attention.backward import hopper_wide_targets
from opmux_triton.attention.backward.configs import hopper_wide_config
from opmux_triton.launch import Launch, recording

OPTIONS: dict[str, Any] = {"scale": None, "causal": True, "window": (-1, -1), "softcap": 0.0}


def launches(
    mask: tuple[bool, ...] = (True, True, True, False), odd: bool = False, dim: int = 256, value_dim: int = 0,
    batch: int = 2, **changes: Any,
) -> list[Launch]:  # fmt: skip
    value_dim = value_dim or dim
    config = hopper_wide_config(parse_arch("sm_90"), {"head_dim": dim, "value_dim": value_dim})
    q, k, grad = made(batch, 300, 8, dim), made(batch, 500, 2, dim), made(batch, 300, 8, value_dim)
    v = made(batch, 500, 2, value_dim + 1)[..., :value_dim] if odd else made(batch, 500, 2, value_dim)
    lse = made(batch, 8, 300, dtype=torch.float32)
    with recording("sm_90") as recorded:
        hopper_wide_targets.attention_backward(
            grad, q, k, v, grad, lse, None, None, output_mask=mask, config=config, **(OPTIONS | changes)
        )
    return recorded.launches


def test_two_gluon_kernels_compute_the_gradients_and_the_portable_ones_repair() -> None:
    found = launches()
    assert [launch.kernel.__name__ for launch in found] == [
        "row_statistics", "wide_keys_values", "wide_queries", "keys_values", "queries_of",
    ]  # fmt: skip
    _, keys_values, queries, *repairs = found
    assert keys_values.kernel.is_gluon()
    assert queries.kernel.is_gluon()
    assert keys_values.grid == (-(-500 // 64) * 2 * 2,)
    assert queries.grid == (-(-300 // 128) * 2 * 8,)
    assert [launch.meta["REPAIR"] for launch in repairs] == [True, True]
    assert [launch.meta["NOTED"] for launch in repairs] == [64, 64]


@pytest.mark.parametrize(
    ("dim", "value_dim", "parts"),
    [
        (136, 136, (128, 64, 128, 64)),
        (192, 192, (128, 64, 128, 64)),
        (192, 128, (128, 64, 128, 0)),
        (200, 200, (256, 0, 256, 0)),
        (256, 256, (256, 0, 256, 0)),
    ],
)
def test_heads_come_in_parts_of_a_power_of_two(dim: int, value_dim: int, parts: tuple[int, ...]) -> None:
    for launch in launches(dim=dim, value_dim=value_dim)[1:3]:
        assert tuple(launch.meta[name] for name in ("HEAD", "HEAD_REST", "VALUE", "VALUE_REST")) == parts
        assert launch.meta["HEAD_DIM"] == dim
    assert launches(dim=dim, value_dim=value_dim)[1].meta["VALUE_DIM"] == value_dim


def test_without_a_mask_there_is_nothing_to_repair() -> None:
    found = launches(causal=False)
    assert [launch.kernel.__name__ for launch in found] == ["row_statistics", "wide_keys_values", "wide_queries"]


@pytest.mark.parametrize(("batch", "section"), [(10, 20), (200, 4)])
def test_few_programs_run_all_pairs_together(batch: int, section: int) -> None:
    keys_values = launches(batch=batch)[1]
    names = list(keys_values.kernel.signature.parameters)
    assert keys_values.arguments[names.index("pairs")] == 2 * batch
    assert keys_values.arguments[names.index("section")] == section


@pytest.mark.parametrize(
    "changes",
    [{"mask": (True, True, False, False)}, {"odd": True}, {"scale": 0.0}, {"batch": 0}],
    ids=["mask", "odd", "scale", "batch"],
)
def test_what_does_not_suit_goes_to_the_portable_kernels(changes: dict[str, Any]) -> None:
    assert not any(launch.kernel.is_gluon() for launch in launches(**changes))
