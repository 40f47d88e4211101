"""Sizes as tiles need them."""

from opmux_triton.arithmetic import next_power_of_two, padded


def test_the_next_power_of_two() -> None:
    assert [next_power_of_two(n) for n in (-1, 0, 1, 2, 3, 64, 65)] == [1, 1, 1, 2, 4, 64, 128]


def test_matrix_units_take_sixteen_or_more() -> None:
    assert [padded(n) for n in (1, 16, 17, 80, 256)] == [16, 16, 32, 128, 256]
