"""The constants of a softmax in base 2."""

import math

from opmux_triton.scoring.base2 import LN_2, LOG2_E


def test_both_change_the_base_and_undo_each_other() -> None:
    assert math.isclose(2 ** (1.5 * LOG2_E.value), math.exp(1.5), rel_tol=1e-15)
    assert math.isclose(math.log2(10) * LN_2.value, math.log(10), rel_tol=1e-15)
    assert math.isclose(LOG2_E.value * LN_2.value, 1.0, rel_tol=1e-15)
