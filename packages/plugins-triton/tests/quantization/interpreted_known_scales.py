"""Run by `quantization/test_targets` under TRITON_INTERPRET=1: quantising with known scales, and taking them off."""

import sys

from quantization.known_scale_calls import CODES, SHAPES, check

for place, (shape, blocks) in enumerate(SHAPES):
    for codes in CODES[place % 2 :: 2]:
        check(shape, blocks, codes, "cpu")
check((3, 4, 5, 70), (3, 4, 5, 1), CODES[0], "cpu", whole=False)
sys.stdout.write("all equal\n")
