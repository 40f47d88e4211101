"""How queries score keys, on the host."""

import math

import pytest

from opmux_triton.scoring.options import LOG2_E, Scoring


def scoring(
    scale: float | None = None, causal: bool = False, window: tuple[int, int] = (-1, -1), cap: float = 0.0
) -> Scoring:
    return Scoring(scale, causal, window, cap)


def test_the_scale_is_that_of_the_head_unless_given() -> None:
    assert scoring().scale_for(64) == 0.125
    assert scoring().scale_for(0) == 1.0
    assert scoring(2).scale_for(64) == 2.0


@pytest.mark.parametrize(("scale", "fold"), [(1.0, True), (0.0, False), (-1.0, False), (math.inf, False)])
def test_positive_finite_scales_fold_into_the_exponent(scale: float, fold: bool) -> None:
    assert scoring(scale).factors(64) == (fold, scale * LOG2_E, 0.0)


def test_a_cap_divides_the_scale_and_does_not_fold() -> None:
    assert scoring(3.0, cap=30.0).factors(64) == (False, 0.1, 30 * LOG2_E)


@pytest.mark.parametrize(
    ("causal", "window", "band"),
    [
        (False, (-1, -1), (False, False, 0, 0)),
        (True, (-1, -1), (False, True, 0, 0)),
        (True, (5, 3), (True, True, 5, 0)),
        (False, (5, 3), (True, True, 5, 3)),
        (False, (19, 9), (False, False, 0, 0)),  # hides no key of 20 from 10 queries
        (False, (18, 8), (True, True, 18, 8)),
    ],
)
def test_a_side_that_hides_no_key_is_not_bounded(
    causal: bool, window: tuple[int, int], band: tuple[bool, bool, int, int]
) -> None:
    assert scoring(causal=causal, window=window).band(10, 20) == band


def test_a_declared_band_keeps_every_side_that_is_named_and_cuts_it_to_the_sequences() -> None:
    assert scoring(window=(19, 1 << 40)).declared_band(10, 20) == (True, True, 19, 30)
    assert scoring(causal=True, window=(-1, 7)).declared_band(10, 20) == (False, True, 0, 0)
