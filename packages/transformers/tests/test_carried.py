"""Codes that go to linears in the place of an attention's input: to which thread, for how long."""

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from opmux_transformers.carried import Ready, attend, carried

X = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
CODES = Ready((torch.ones(6, 8, dtype=torch.int8), torch.ones(6, 1)))


def test_the_tensor_that_an_attention_gets_stands_for_the_codes() -> None:
    seen: list[Tensor] = []

    def attention(hidden_states: Tensor, scale: float) -> float:
        seen.append(hidden_states)
        assert carried(hidden_states) is CODES
        assert carried(hidden_states.clone()) is None
        assert carried(X) is None
        return scale

    assert attend(attention, X.bfloat16(), CODES, {"scale": 0.5}) == 0.5
    (given,) = seen
    assert (given.shape, given.dtype, given.device) == (X.shape, torch.bfloat16, X.device)
    assert given.untyped_storage().nbytes() == 2  # one value
    assert carried(given) is None  # the call is over


def test_an_attention_inside_another_has_codes_of_its_own() -> None:
    others = Ready((torch.zeros(6, 8, dtype=torch.int8), torch.ones(6, 1)))

    def inner(hidden_states: Tensor, outer: Tensor) -> None:
        assert carried(hidden_states) is others
        assert carried(outer) is None

    def outer(hidden_states: Tensor) -> None:
        attend(inner, X, others, {"outer": hidden_states})
        assert carried(hidden_states) is CODES

    attend(outer, X, CODES, {})


def test_an_attention_that_raises_leaves_nothing_behind() -> None:
    seen: list[Tensor] = []

    def attention(hidden_states: Tensor) -> None:
        seen.append(hidden_states)
        raise ArithmeticError("no")

    with pytest.raises(ArithmeticError):
        attend(attention, X, CODES, {})
    assert carried(seen[0]) is None


def test_another_thread_sees_a_tensor_and_no_codes() -> None:
    found: list[Any] = []

    def attention(hidden_states: Tensor) -> None:
        other = threading.Thread(target=lambda: found.append(carried(hidden_states)))
        other.start()
        other.join()
        found.append(carried(hidden_states))

    attend(attention, X, CODES, {})
    assert found == [None, CODES]
