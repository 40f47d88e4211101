"""Triton kernels compiled for AMD archs without a device, and torch tensors as memory."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from opmux_emulator import Program


def compile_kernel(
    kernel: Any, arch: str, signature: Mapping[str, str], constants: Mapping[str, Any], **options: Any
) -> Any:
    """What Triton compiles: ``.asm`` and ``.metadata``. Pointers and integers count as multiples of 16."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        names = {**signature, **dict.fromkeys(constants, "constexpr")}
        divisible = {
            (k,): [["tt.divisibility", 16]] for k, t in enumerate(signature.values()) if t[0] == "*" or t == "i32"
        }
        source = ASTSource(kernel, names, dict(constants), divisible)
        return triton.compile(source, target=GPUTarget("hip", arch, 64), options=options)


def program_of(compiled: Any) -> Program:
    return Program(compiled.asm["hsaco"])


def array(tensor: torch.Tensor) -> np.ndarray:
    """A tensor's bytes, shared."""
    return tensor.contiguous().view(torch.uint8).numpy()
