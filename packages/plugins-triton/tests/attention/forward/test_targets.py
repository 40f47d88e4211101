"""What is launched for attention's forward."""

from typing import Any

import pytest
from planted_launches import made

from opmux.plugin import parse_arch
from opmux_triton.attention.forward import targets
from opmux_triton.attention.forward.configs import forward_config
from opmux_triton.launch import Launch, recording

OPTIONS: dict[str, Any] = {"scale": None, "causal": True, "window": (-1, -1), "softcap": 0.0}


def launches(arch: str, queries: int = 512, dim: int = 64, **changes: Any) -> list[Launch]:
    config = forward_config(parse_arch(arch), {"head_dim": dim, "value_dim": dim, "bucket(seq_q)": 9})
    q, k, v = made(2, queries, 8, dim), made(2, 640, 2, dim), made(2, 640, 2, dim)
    with recording(arch) as recorded:
        targets.attention(q, k, v, config=config, **(OPTIONS | changes))
    return recorded.launches


def test_the_grid_has_a_program_for_every_tile_of_every_head() -> None:
    (launch,) = launches("sm_80")
    assert launch.grid == (512 // launch.meta["ROWS"] * 2 * 8,)
    (odd,) = launches("sm_80", queries=513)
    assert odd.grid == ((512 // launch.meta["ROWS"] + 1) * 2 * 8,)


def test_without_queries_nothing_is_launched() -> None:
    assert launches("sm_80", queries=0) == []


@pytest.mark.parametrize(
    ("changes", "flags"),
    [
        ({}, {"LEFT": False, "RIGHT": True, "SOFTCAP": False, "FOLD": True, "CAREFUL": True}),
        ({"causal": False}, {"LEFT": False, "RIGHT": False, "SOFTCAP": False, "FOLD": True, "CAREFUL": False}),
        ({"window": (9, 0)}, {"LEFT": True, "RIGHT": True, "SOFTCAP": False, "FOLD": True, "CAREFUL": True}),
        ({"softcap": 30.0}, {"LEFT": False, "RIGHT": True, "SOFTCAP": True, "FOLD": False, "CAREFUL": True}),
    ],
)
def test_options_become_flags(changes: dict[str, Any], flags: dict[str, bool]) -> None:
    (launch,) = launches("sm_80", **changes)
    assert {name: launch.meta[name] for name in flags} == flags


def test_where_one_kernel_would_spill_non_finite_results_are_computed_by_a_second() -> None:
    first, second = launches("gfx942", dim=128)
    assert (first.meta["FAST"], first.meta["CAREFUL"]) == (True, False)
    assert (second.meta["FAST"], second.meta["CAREFUL"]) == (False, True)
    assert len(launches("gfx942", dim=128, causal=False)) == 1


def test_keys_come_by_descriptors_from_hopper_on() -> None:
    assert not launches("sm_80")[0].meta["TMA"]
    assert launches("sm_100")[0].meta["TMA"]


def test_a_group_of_heads_shares_what_the_cache_holds() -> None:
    k = made(1, 1024, 2, 64)
    each = 1024 * 128 * 2
    assert targets.pairs_at_a_time(64, 4, 1024, k, k, cache=3 * each) == 12
    assert targets.pairs_at_a_time(8, 4, 1024, k, k, cache=3 * each) == 8
    assert targets.pairs_at_a_time(64, 4, 1024, k, k, cache=1) == 4
