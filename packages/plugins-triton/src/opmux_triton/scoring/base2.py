"""Constants of a softmax in base 2, for kernels; hosts take ``.value``."""

import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
"""Scores times this are exponents of 2."""
LN_2 = tl.constexpr(0.6931471805599453)
"""A logarithm to base 2 times this is the natural one."""
