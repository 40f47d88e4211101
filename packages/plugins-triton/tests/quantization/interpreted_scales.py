"""Run by `quantization/test_targets` under TRITON_INTERPRET=1: scales in other layouts and dtypes."""

import sys

from quantization.scale_calls import SHAPES, check

for shape in SHAPES:
    check(shape, "cpu")
sys.stdout.write("all equal\n")
