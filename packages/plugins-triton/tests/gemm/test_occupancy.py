"""Whether tiles keep the multiprocessors busy."""

import pytest

from opmux.plugin import parse_arch
from opmux_triton.gemm.occupancy import fills

HOPPER = parse_arch("sm_90")


@pytest.mark.parametrize(
    ("tiles", "busy"), [(132, True), (116, True), (115, False), (133, False), (264, True), (132 * 7 + 1, True)]
)
def test_seven_eighths_of_all_rounds_must_be_work(tiles: int, busy: bool) -> None:
    assert fills(HOPPER, 128, 128, 128 * tiles, 128) == busy


def test_a_rest_that_is_cut_takes_less_than_a_round() -> None:
    assert not fills(HOPPER, 128, 128, 128 * 140, 128)
    assert fills(HOPPER, 128, 128, 128 * 140, 128, cut_rest=True)


def test_two_programs_on_a_multiprocessor_need_twice_as_many_tiles() -> None:
    assert not fills(HOPPER, 128, 128, 128 * 132, 128, per_unit=2)
    assert fills(HOPPER, 128, 128, 128 * 264, 128, per_unit=2)
