"""The conformance suite, for every op that a library has on this machine.

On a GPU each library has a suite of its own: asked for the whole backend, the suite would test the first library that
takes a case, and no other.
"""

from pathlib import Path

import torch

from opmux.testing import conformance_suite


def exceptions(library: str) -> Path:
    return Path(__file__).with_name(f"exceptions-{library}.txt")


if torch.cuda.is_available():
    TestBlas = conformance_suite("vendor:blas")
    TestFused = conformance_suite("vendor:fused")
    TestGrouped = conformance_suite("vendor:grouped")
    TestCudnn = conformance_suite("vendor:cudnn")
    TestScaledMm = conformance_suite("vendor:scaled_mm")
    TestScaledMmOfTensors = conformance_suite("vendor:scaled_mm_tensors")
    TestScaledMmOfBlocks = conformance_suite("vendor:scaled_mm_blocks")
    TestIntMm = conformance_suite("vendor:int_mm")
    TestFlash = conformance_suite("vendor:flash", exceptions=exceptions("flash"))
else:
    TestVendor = conformance_suite("vendor", exceptions=exceptions("cpu"))
