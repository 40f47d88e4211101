"""Codes that go to an attention's linears in the place of its input, while its forward runs.

The forward is transformers' own and takes a tensor. It gets one of the right shape and dtype that holds one value and
takes no memory: a check has shown that it only hands this tensor to its linears, which take the codes instead. While
Dynamo traces, it gets its own input.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Ready(NamedTuple):
    """What an attention's linears take in place of its input.

    Attributes:
        codes: The codes of its rows, ``(m, hidden)``, and their scales.
        parts: The linears' results, ``(m, n)``, if they have been computed in one product.
    """

    codes: tuple[Tensor, Tensor]
    parts: Sequence[Tensor] | None = None


class _Carried(threading.local):
    """The current tensor of a thread that stands for codes, and what it stands for."""

    stand_in: Tensor | None = None
    ready: Ready | None = None


class _Traced:
    """The same while Dynamo traces: an object that it guards, which it does not do with those of a thread.

    What stands for codes is then the norm's result itself. Where all that read it take the codes, nothing computes it:
    the graph drops what is not used. Where the graph breaks in between, linears may not know the tensor, and quantise
    it as any other.
    """

    def __init__(self) -> None:
        self.found: tuple[Tensor, Ready] | None = None


_CARRIED, _TRACED = _Carried(), _Traced()


def carried(x: Tensor) -> Ready | None:
    """What a tensor stands for; None if it is what it is."""
    if torch.compiler.is_compiling():
        found = _TRACED.found
        return None if found is None or found[0] is not x else found[1]
    return _CARRIED.ready if x is _CARRIED.stand_in else None


def attend(attention: Callable[..., Any], like: Tensor, ready: Ready, given: dict[str, Any]) -> Any:
    """Call an attention with codes for its linears.

    Args:
        attention: What to call.
        like: A tensor of the shape, dtype and device of its input.
        ready: What its linears take.
        given: The other keywords.
    """
    before = _CARRIED.stand_in, _CARRIED.ready
    stand_in = like.new_empty(()).expand(like.shape)
    _CARRIED.stand_in, _CARRIED.ready = stand_in, ready
    try:
        return attention(hidden_states=stand_in, **given)
    finally:
        _CARRIED.stand_in, _CARRIED.ready = before


def attend_traced(attention: Callable[..., Any], x: Tensor, ready: Ready, given: dict[str, Any]) -> Any:
    """The same where Dynamo traces; ``x`` is the attention's input, which the codes are made of."""
    before = _TRACED.found
    _TRACED.found = x, ready
    try:
        return attention(hidden_states=x, **given)
    finally:
        _TRACED.found = before
