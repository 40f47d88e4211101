"""Run by `activation/test_targets` under TRITON_INTERPRET=1: what the interpreter's conformance cases do not reach."""

import sys

import torch
from interpreted_results import same, scattered

import opmux
from opmux_triton.activation import backward_targets as gate_backward
from opmux_triton.activation import targets as gates
from opmux_triton.activation.configs import GatedConfig

torch.manual_seed(0)


def check_gates() -> None:
    """Tiles that end inside a row, in unfoldable strides."""
    gate, up, grad, x = (scattered(2, 3, 2, n) for n in (40, 40, 40, 80))
    config = GatedConfig(block=16, rows=2, num_warps=4)
    same(gates.silu_and_mul(x, config=config), opmux.silu_and_mul.reference(x), "silu_and_mul")
    for approximate in ("none", "tanh"):
        o = {"approximate": approximate}
        same(gates.gelu_mul(gate, up, **o, config=config), opmux.gelu_mul.reference(gate, up, **o), "gelu_mul")
        for mask in ((True, True), (True, False), (False, True)):
            found = gate_backward.gelu_mul_backward(grad, gate, up, **o, output_mask=mask, config=config)
            same(found, opmux.gelu_mul_backward.reference(grad, gate, up, **o, output_mask=mask), f"gelu {mask}")
    found = gate_backward.silu_and_mul_backward(grad, x, output_mask=(True,), config=config)
    same(found, opmux.silu_and_mul_backward.reference(grad, x), "silu_and_mul_backward")


check_gates()
sys.stdout.write("all equal\n")
