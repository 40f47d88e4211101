"""Addresses in words: the allocation that holds one, else the nearest."""

from opmux_emulator.running.memory import GAP, describe

BLOCKS = [(GAP, 64, "x"), (GAP + 128, 40, "out"), (GAP + 1024, 64, "y")]


def test_inside_and_beside() -> None:
    assert describe(GAP + 132, BLOCKS) == "out + 0x4"
    assert describe(GAP + 168, BLOCKS) == "out + 0x28, outside its 0x28 bytes"
    assert describe(GAP + 1020, BLOCKS) == "y + -0x4, outside its 0x40 bytes"


def test_far_from_all() -> None:
    assert describe(4 * GAP, BLOCKS) == f"{4 * GAP:#x}, in no allocation"
    assert describe(8, []) == "0x8, in no allocation"
