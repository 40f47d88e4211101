"""Run by `test_interpreter_guard` under TRITON_INTERPRET=1: what is outside of a kernel's tensors is found."""

import sys

import planted_kernels as planted
import torch

from opmux_triton.interpreter_guard import OutsideOfTensors
from opmux_triton.launch import launch

ROWS = torch.randn(40)
OUTSIDE = (
    "triton: kernel {} {} {} x 4 bytes outside of its tensors' memory; the first of them {} 4 bytes {}: "
    "look at the mask and the strides"
)


def error_of(kernel: object, *arguments: object, block: int = 64) -> str:
    """What a launch is refused with; nothing if it is not."""
    try:
        launch(kernel, (1,), arguments, {"BLOCK": block})
    except OutsideOfTensors as error:
        return str(error)
    return ""


def expect(found: str, *told: object) -> None:
    """Hold a message to what it should tell; nothing stands for a launch that is not refused."""
    wanted = OUTSIDE.format(*told) if told else ""
    assert found == wanted, f"{found!r} is not {wanted!r}"


expect(error_of(planted.copy, ROWS, torch.empty(40), 40))
expect(error_of(planted.copy, ROWS[32:], torch.empty(8), 8))
expect(error_of(planted.copy, ROWS, torch.empty(64), 41), "copy", "reads", 1, "ends", "behind `x`")
expect(error_of(planted.copy, ROWS, torch.empty(38), 40), "copy", "writes", 2, "ends", "behind `y`")
expect(error_of(planted.copy_strided, ROWS, torch.empty(3), -1, 3), "copy_strided", "reads", 2, "begins", "before `x`")
expect(error_of(planted.count_up, ROWS, torch.zeros(32), 32, block=32))
expect(
    error_of(planted.count_up, ROWS, torch.zeros(30), 32, block=32), "count_up", "changes", 2, "ends", "behind `counts`"
)
expect(
    error_of(planted.count_up, ROWS[:31].clone(), torch.zeros(32), 32, block=32),
    "count_up",
    "reads",
    1,
    "ends",
    "behind `x`",
)
swapped = "count_up_by_swaps", "changes", 1, "ends", "behind `counts`"
expect(error_of(planted.count_up_by_swaps, torch.zeros(32, dtype=torch.int32), block=32))
expect(error_of(planted.count_up_by_swaps, torch.zeros(31, dtype=torch.int32), block=32), *swapped)
sys.stdout.write("all equal")
