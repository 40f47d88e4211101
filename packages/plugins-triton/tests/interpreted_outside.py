"""Run by `test_interpreter_guard` under TRITON_INTERPRET=1: what is outside of a kernel's tensors is found."""

import re
import sys

import planted_kernels as planted
import torch
from triton.runtime.errors import InterpreterError

from opmux_triton.launch import launch

ROWS = torch.randn(40)


def error_of(count: int, *tensors: torch.Tensor, stride: int | None = None) -> str:
    """What a copy of ``count`` elements is refused with; nothing if it is not."""
    kernel = planted.copy if stride is None else planted.copy_strided
    try:
        launch(kernel, (1,), (*tensors, *([] if stride is None else [stride]), count), {"BLOCK": 64})
    except InterpreterError as error:
        return re.sub(r"^OutsideOfTensors\(['\"]|['\"]\)$", "", str(error))
    return ""


outside = (
    "triton: kernel {} {} {} x 4 bytes outside of its tensors' memory; the first of them {} 4 bytes {}: "
    "look at the mask and the strides"
)
assert error_of(40, ROWS, torch.empty(40)) == ""
assert error_of(8, ROWS[32:], torch.empty(8)) == ""
assert error_of(41, ROWS, torch.empty(64)) == outside.format("copy", "reads", 1, "ends", "behind `x`")
assert error_of(40, ROWS, torch.empty(38)) == outside.format("copy", "writes", 2, "ends", "behind `y`")
found = error_of(3, ROWS, torch.empty(3), stride=-1)
assert found == outside.format("copy_strided", "reads", 2, "begins", "before `x`")
sys.stdout.write("all equal")
