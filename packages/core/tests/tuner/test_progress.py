"""How far a run of the tuner is, as a line."""

import pytest

from opmux.tuner import Progress


@pytest.mark.parametrize(
    ("left_s", "line"),
    [(None, "3 of 8: linear m=1"), (61.6, "3 of 8, 62 s left: linear m=1")],
    ids=["unknown", "known"],
)
def test_a_line_says_what_is_known(left_s, line) -> None:
    assert str(Progress(3, 8, left_s, "linear m=1")) == line
