"""The band of keys that causal and window leave."""

from collections.abc import Callable

import pytest


@pytest.mark.long
def test_interpreted_masks_agree_with_a_count_of_the_pairs(interpret: Callable[[str], None]) -> None:
    interpret("scoring/interpreted_masks.py")
