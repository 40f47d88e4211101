"""The scale of scores, as the kernels take it."""

import math

KEPT, TWO_SIGNS = 0xFFFFFFFF, 0x80008000


def scaling(scale: float | None, head_dim: int) -> tuple[float, int, int]:
    """A positive factor for exponents of 2, and which bits of two queries are kept, and turned.

    The kernels compare scores before they scale them, so the sign of the scale goes to the queries; of a scale of 0,
    the queries are 0.
    """
    factor = head_dim**-0.5 if scale is None else scale
    if factor == 0:
        return 1.0, 0, 0
    return abs(factor) * math.log2(math.e), KEPT, TWO_SIGNS if factor < 0 else 0
