"""The portable products."""

from collections.abc import Callable


def test_interpreted_products_agree_with_float64(interpret: Callable[[str], None]) -> None:
    interpret("gemm/interpreted_products.py")
