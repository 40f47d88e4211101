"""Codes that go to an attention's linears in the place of its input, while its forward runs.

The forward is transformers' own and takes a tensor. It gets one of the right shape and dtype that holds one value and
takes no memory: a check has shown that it only hands this tensor to its linears, which take the codes instead.
"""

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class _Carried(threading.local):
    """The current tensor of a thread that stands for codes, and what it stands for."""

    stand_in: Tensor | None = None
    codes: tuple[Tensor, Tensor] | None = None


_CARRIED = _Carried()


def carried(x: Tensor) -> tuple[Tensor, Tensor] | None:
    """The codes and scales of rows that a tensor stands for; None if it is what it is."""
    if torch.compiler.is_compiling() or x is not _CARRIED.stand_in:
        return None
    return _CARRIED.codes


def attend(attention: Callable[..., Any], like: Tensor, codes: tuple[Tensor, Tensor], given: dict[str, Any]) -> Any:
    """Call an attention with codes for its linears.

    Args:
        attention: What to call.
        like: A tensor of the shape, dtype and device of its input.
        codes: The codes of its rows, ``(m, hidden)``, and their scales.
        given: The other keywords.
    """
    before = _CARRIED.stand_in, _CARRIED.codes
    stand_in = like.new_empty(()).expand(like.shape)
    _CARRIED.stand_in, _CARRIED.codes = stand_in, codes
    try:
        return attention(hidden_states=stand_in, **given)
    finally:
        _CARRIED.stand_in, _CARRIED.codes = before
