"""Plain linears in 16 bits whose input is a single row, as where one sequence is decoded: `opmux.linear` computes it.

Such a product reads the weight once and is as fast as memory in a kernel that is made for it. On an H200, in a chain
of products, torch took 1.05 to 2.5 times as long at the weights of Llama 8B and Qwen3 30B-A3B with up to 8192 columns.
More rows, and everything but plain tensors without a gradient, are torch's as before.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import opmux
from opmux.nn import autocast_dtype
from opmux.nn.quantization_choice import AS_TORCH
from opmux_transformers.foreign import mark

_TORCHS = nn.Linear.forward
DTYPES = (torch.bfloat16, torch.float16)
DEVICES = ("cuda",)
"""Types of devices on which opmux computes a row."""


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``torch.nn.functional.linear``, by `opmux.linear` where x is a single row."""
    if is_single_row(x, weight):
        found: Tensor = opmux.linear(x, weight, bias)
        return found
    return functional.linear(x, weight, bias)


def is_single_row(x: Tensor, weight: Tensor) -> bool:
    """Whether opmux computes the product: one row of plain tensors in 16 bits, with no gradient due and no autocast."""
    return (
        x.numel() == x.shape[-1]
        and x.device.type in DEVICES
        and x.dtype in DTYPES
        and weight.dtype == x.dtype
        and not torch.is_grad_enabled()
        and x.__class__ in (Tensor, nn.Parameter)
        and weight.__class__ in (Tensor, nn.Parameter)
        and autocast_dtype(x) is None
        and (torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is None)
    )


def vector_forward(self: Any, input: Tensor) -> Tensor:  # the name in torch.nn.Linear
    """The forward that replaces a linear's own. Where torch's class has got another one since, that computes it."""
    if nn.Linear.forward is not _TORCHS:
        return nn.Linear.forward(self, input)
    return product(input, self.weight, self.bias)


setattr(mark(vector_forward), AS_TORCH, True)
