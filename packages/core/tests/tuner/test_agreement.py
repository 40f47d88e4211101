"""Whether results of candidates are those of one call: 8-bit floats may round either way, nothing else may differ."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from opmux.tuner.checking import Agreement

E4M3 = torch.float8_e4m3fn


def outside(*found: Sequence[Tensor]) -> set[int]:
    agreement = Agreement()
    for number, results in enumerate(found):
        agreement.enter(number, list(results))
    return agreement.outside()


def stepped(codes: Tensor, count: int, steps: int = 1) -> Tensor:
    """The same codes, the first ones some steps larger."""
    raw = codes.clone().view(torch.uint8)
    raw.view(-1)[:count] += steps
    return raw.view(codes.dtype)


@pytest.fixture
def codes() -> Tensor:
    """Codes of which a step of the largest is 7 % of it."""
    return torch.full((16, 128), 416.0).to(E4M3)


def test_a_few_codes_that_round_the_other_way_agree(codes: Tensor) -> None:
    scale = torch.rand(16, 1)
    assert outside((codes, scale), (stepped(codes, 60), scale)) == set()


def test_many_codes_that_differ_do_not_agree(codes: Tensor) -> None:
    assert outside((codes,), (codes,), (stepped(codes, 70),)) == {2}


def test_a_code_that_is_two_steps_off_does_not_agree(codes: Tensor) -> None:
    assert outside((codes,), (codes,), (stepped(codes, 1, -2),)) == {2}


def test_scales_that_differ_do_not_agree(codes: Tensor) -> None:
    scale = torch.rand(16, 1)
    assert outside((codes, scale), (codes, scale), (codes, 1.1 * scale)) == {2}


@pytest.mark.parametrize("dtype", [E4M3, torch.float8_e5m2])
def test_the_least_step_is_that_of_subnormal_codes(dtype: torch.dtype) -> None:
    zeros = torch.zeros(128).to(dtype)
    assert outside((zeros,), (stepped(zeros, 2),)) == set()
    assert outside((zeros,), (zeros,), (stepped(zeros, 2, 2),)) == {2}


def test_nan_is_taken_for_zero(codes: Tensor) -> None:
    empty = codes.clone()
    empty[0] = float("nan")
    assert outside((empty,), (empty.clone(),)) == set()
    assert outside((codes,), (codes,), (empty,)) == {2}
