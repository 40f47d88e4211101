"""What is launched for attention's forward on sm_90."""

from typing import Any

import pytest
from planted_launches import made

from opmux.plugin import parse_arch
from opmux_triton.attention.forward import hopper_targets
from opmux_triton.attention.forward.configs import hopper_config
from opmux_triton.launch import Launch, recording

OPTIONS: dict[str, Any] = {"scale": None, "causal": True, "window": (-1, -1), "softcap": 0.0}


def launched(queries: int = 512, keys: int = 640, dim: int = 64, odd: bool = False, **changes: Any) -> Launch:
    config = hopper_config(parse_arch("sm_90"), {"head_dim": dim, "value_dim": dim, "bucket(seq_q)": 9})
    q, k, v = made(2, queries, 8, dim), made(2, keys, 2, dim), made(2, keys, 2, dim)
    if odd:
        k = made(2, keys, 2, dim + 1)[..., :dim]
    with recording("sm_90") as recorded:
        hopper_targets.attention_lse(q, k, v, config=config, **(OPTIONS | changes))
    (launch,) = recorded.launches
    return launch


def test_programs_are_as_many_as_tiles_and_no_more_than_multiprocessors() -> None:
    assert launched().grid == (4 * 16,)  # of 128 rows: of 192 they would leave most multiprocessors idle
    assert launched(queries=4096).grid == (132,)


@pytest.mark.parametrize(
    ("changes", "warpgroups"),
    [({}, 3), ({"causal": False}, 3), ({"causal": False, "keys": 641}, 2), ({"window": (9, 0)}, 2), ({"dim": 128}, 2)],
)
def test_masks_take_registers_of_which_two_warpgroups_have_more(changes: dict[str, Any], warpgroups: int) -> None:
    launch = launched(**({"queries": 12672, "keys": 12672} | changes))  # whole rounds of tiles of 192 rows
    assert launch.meta["GROUPS"] == warpgroups
    assert launch.meta["REGISTERS"] == {2: 240, 3: 160}[warpgroups]


@pytest.mark.parametrize(
    ("changes", "block"),
    [({}, 64), ({"causal": False}, 128), ({"keys": 128}, 128), ({"keys": 257}, 128), ({"window": (9, 0)}, 128)]
    + [({"dim": 96}, 128), ({"dim": 192}, 64)],
)
def test_two_blocks_of_keys_under_a_causal_mask_are_cut_in_halves(changes: dict[str, Any], block: int) -> None:
    assert launched(**({"queries": 165, "keys": 165} | changes)).meta["BLOCK"] == block


def test_whole_blocks_without_a_band_need_no_mask() -> None:
    assert not launched(causal=False).meta["MASKED"]
    assert launched(causal=False, keys=641).meta["MASKED"]


@pytest.mark.parametrize("changes", [{"odd": True}, {"scale": -1.0}, {"scale": 0.0}])
def test_what_does_not_suit_goes_to_the_portable_kernel(changes: dict[str, Any]) -> None:
    assert launched().kernel.is_gluon()
    assert not launched(**changes).kernel.is_gluon()


@pytest.mark.parametrize(
    ("dim", "parts"),
    [(64, (64, 0)), (72, (64, 16)), (80, (64, 16)), (96, (64, 32)), (104, (128, 0)), (128, (128, 0)), (136, (128, 16))]
    + [(160, (128, 32)), (192, (128, 64)), (200, (256, 0)), (256, (256, 0))],
)
def test_heads_come_in_powers_of_two(dim: int, parts: tuple[int, int]) -> None:
    meta = launched(dim=dim).meta
    assert (meta["HEAD"], meta["HEAD_REST"]) == (meta["VALUE"], meta["VALUE_REST"]) == parts
    assert meta["HEAD"] + meta["HEAD_REST"] >= dim
