"""Rows that are quantised once: for several linears that take the same input, or by the op before them.

Only where nothing watches the linears and no gradient is due; the callers make sure that not all modules are watched.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import opmux
from opmux.nn.quantized_product import ACTIVATIONS
from opmux_transformers.calls import watched
from opmux_transformers.carried import carried
from opmux_transformers.coded import PLACE, Codes, backend_of, codes_of


def taking(modules: Sequence[Any]) -> tuple[Codes, torch.dtype] | None:
    """What codes these linears take as their input, if they all take the same, and need not be called as modules."""
    if torch.is_grad_enabled():
        return None
    found: tuple[Codes, torch.dtype] | None = None
    for module in modules:
        codes = codes_of(module)
        if codes is None or codes.activations == "static" or codes.casts_now(module) or watched(module):
            return None
        if backend_of(module) is not None:
            return None  # its input has to be quantised by that backend
        dtype = codes.dtype(module)
        if dtype.itemsize > 1 or (found is not None and (found[0].activations, found[1]) != (codes.activations, dtype)):
            return None  # in a check, weights are not codes
        found = codes, dtype
    return found


def block_of(codes: Codes) -> tuple[int, int]:
    """The block of the input's values that share a scale."""
    return ACTIVATIONS[codes.activations]


def products(modules: Sequence[Any], x: Tensor) -> list[Tensor] | None:
    """The results of linears for one input, ``(*tokens, in_features)``; None if they have to be called one by one."""
    taken = taking(modules)
    if taken is None:
        return None
    ready = carried(x)
    if ready is not None and ready.parts is not None:
        parts = [ready.parts[module.__dict__[PLACE]] for module in modules]
        return [part.view(*x.shape[:-1], part.shape[-1]) for part in parts]
    if ready is not None:
        q, scale = ready.codes
    else:
        q, scale = opmux.quantize(x.reshape(-1, x.shape[-1]), dtype=taken[1], block=block_of(taken[0]))
    return [product(module, q, scale, x.shape, x.dtype) for module in modules]


def product(module: nn.Module, q: Tensor, scale: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """The result of one of them for codes: ``(*shape[:-1], out_features)``."""
    codes = codes_of(module)
    assert codes is not None
    out = codes.product(module, q, scale, dtype)
    return out.view(*shape[:-1], out.shape[-1])


def gated(output: nn.Module, both: Tensor) -> Tensor | None:
    """The output projection of a SwiGLU whose gate and up projection are ``both``, ``(*tokens, 2 * n)``.

    The gate is quantised in the pass that computes it; None if the projection takes no such codes.
    """
    taken = taking([output])
    if taken is None:
        return None
    rows = both.reshape(-1, both.shape[-1])
    q, scale = opmux.silu_and_mul_quantize(rows, dtype=taken[1], block=block_of(taken[0]))
    return product(output, q, scale, both.shape, both.dtype)
