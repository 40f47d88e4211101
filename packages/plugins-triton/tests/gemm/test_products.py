"""The portable products."""

from collections.abc import Callable

import pytest


@pytest.mark.long
def test_interpreted_products_agree_with_float64(interpret: Callable[[str], None]) -> None:
    interpret("gemm/interpreted_products.py")
