"""Plain linears in 16 bits whose input is a single row, as where one sequence is decoded: `opmux.linear` computes it.

Such a product reads the weight once and is as fast as memory in a kernel that is made for it. On an H200, where
products follow each other in a CUDA graph, torch took 1.02 to 3.9 times as long at the weights of Llama 8B, Qwen3 4B
and Qwen3 30B-A3B with up to 8192 columns. More rows, and everything but plain tensors under ``torch.no_grad()``, are
torch's as before.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional

import opmux
from opmux.nn import autocast_dtype
from opmux.nn.quantization_choice import AS_TORCH
from opmux_transformers.foreign import mark

TORCHS = nn.Linear.forward if getattr(nn.Linear.forward, "__globals__", None) is vars(nn.modules.linear) else None
"""torch's own forward of a linear; None if it was replaced before this module was imported."""
DTYPES = (torch.bfloat16, torch.float16)
DEVICES = ("cuda",)
"""Types of devices on which opmux computes a row."""
_PLAIN = (Tensor, nn.Parameter)
_functorch = torch._C._functorch


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``torch.nn.functional.linear``, by `opmux.linear` where x is a single row."""
    if is_single_row(x, weight):
        found: Tensor = opmux.linear(x, weight, bias)
        return found
    return functional.linear(x, weight, bias)


def is_single_row(x: Tensor, weight: Tensor) -> bool:
    """Whether opmux computes the product: one row of plain tensors in 16 bits, without gradients and autocast."""
    return (
        not torch.is_grad_enabled()
        and x.device.type in DEVICES
        and x.dtype in DTYPES
        and weight.dtype == x.dtype
        and x.__class__ in _PLAIN
        and weight.__class__ in _PLAIN
        and not x.is_nested
        and x.ndim > 0
        and _known(x.numel() == x.shape[-1])
        and _known(x.shape[-1] == weight.shape[1])
        and autocast_dtype(x) is None
        and _is_untransformed(x, weight)
    )


def _known(condition: Any) -> bool:
    """A condition on sizes, and False where a compiler cannot know it."""
    if torch.compiler.is_compiling():
        from torch.fx.experimental.symbolic_shapes import guard_or_false

        return guard_or_false(condition)
    return bool(condition)


def _is_untransformed(x: Tensor, weight: Tensor) -> bool:
    """Whether no transform of functions is at work. A compiler sees those of ``torch.vmap`` alone."""
    if torch.compiler.is_compiling():
        return not _functorch.is_batchedtensor(x) and not _functorch.is_batchedtensor(weight)
    return _functorch.peek_interpreter_stack() is None and forward_ad._current_level < 0


def vector_forward(self: Any, input: Tensor) -> Tensor:  # the name in torch.nn.Linear
    """The forward that replaces a linear's own. Where torch's class has got another one since, that computes it."""
    if nn.Linear.forward is not TORCHS:
        return nn.Linear.forward(self, input)
    return product(input, self.weight, self.bias)


setattr(mark(vector_forward), AS_TORCH, True)
