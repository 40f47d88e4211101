"""Constants of a softmax in base 2, for kernels; hosts take ``.value``."""

import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
"""Multiplies scores, to make them exponents of 2."""
LN_2 = tl.constexpr(0.6931471805599453)
"""Multiplies a logarithm to base 2, to make it natural."""
