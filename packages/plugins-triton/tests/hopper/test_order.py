"""The order in which programs of a persistent kernel compute tiles."""

import pytest
from gluon_threads import Machine

from opmux_triton.hopper import order


@pytest.mark.parametrize(("tiles", "programs"), [(1, 1), (7, 3), (12, 4), (3, 8), (133, 132)])
def test_programs_compute_every_tile_once(tiles: int, programs: int) -> None:
    computed = []
    for program in range(programs):
        functions = Machine(program, programs, seed=0).functions(order)
        computed += [functions["place_of"](visit) for visit in range(functions["visits"](tiles))]
    assert sorted(computed) == list(range(tiles))


def test_programs_take_turns_in_the_opposite_order_every_other_time() -> None:
    first = Machine(0, 4, seed=0).functions(order)
    assert [first["place_of"](visit) for visit in range(4)] == [0, 7, 8, 15]
