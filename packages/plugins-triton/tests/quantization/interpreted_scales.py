"""Run by `quantization/test_targets` under TRITON_INTERPRET=1: scales in other layouts and dtypes."""

import sys

from quantization.scale_calls import SHAPES, check, check_unpacking

for shape in SHAPES:
    check(shape, "cpu")
    check_unpacking(shape, "cpu")
sys.stdout.write("all equal\n")
