"""Between how many programs a tile of keys is divided."""

from collections.abc import Callable

import pytest
import torch
from planted_launches import made

from opmux_triton.attention.backward.configs import SHARES
from opmux_triton.attention.backward.share_kernels import MOST_SHARES
from opmux_triton.attention.backward.shares import add_parts, parts_for, shares_for
from opmux_triton.launch import recording


@pytest.mark.long
def test_interpreted_shares_agree_with_the_reference(interpret: Callable[[str], None]) -> None:
    interpret("attention/backward/interpreted_shares.py")


def test_a_full_device_shares_nothing() -> None:
    assert shares_for(132 * 8, 100, 132, triangular=False) == 1
    assert shares_for(132 * 8, 100, 132, triangular=True) == 1


@pytest.mark.parametrize("triangular", [False, True])
def test_few_long_programs_share(triangular: bool) -> None:
    assert shares_for(48, 200, 132, triangular) > 1


def test_a_program_of_one_step_cannot_be_shared() -> None:
    assert shares_for(1, 1, 132, triangular=False) == 1


def test_what_spills_into_another_wave_is_shared() -> None:
    assert shares_for(140, 400, 132, triangular=False) > 1


@pytest.mark.parametrize("programs", [1, 7, 66, 131, 132, 200, 500])
@pytest.mark.parametrize("triangular", [False, True])
def test_parts_are_bounded_by_programs(programs: int, triangular: bool) -> None:
    for steps in (1, 2, 5, 40, 1000):
        shares = shares_for(programs, steps, 132, triangular)
        assert shares == 1 or (shares <= steps and shares * programs <= 4 * 132)


def test_what_is_chosen_can_be_added() -> None:
    assert max(SHARES) == MOST_SHARES.value


def test_parts_of_unwritten_memory_begin_as_zero() -> None:
    gradient, unwanted = made(2, 5, 3, 16), made(0)
    parts = parts_for(gradient, unwanted, 4, zero=True)
    assert parts.k.shape == (2, 5, 3, 4, 16)
    assert parts.v.shape == (0,)
    assert parts.k.dtype == torch.float32


def test_without_gradients_nothing_is_added() -> None:
    with recording("sm_90") as recorded:
        add_parts(parts_for(made(0), made(0), 2, zero=False), made(0), made(0), 2)
    assert not recorded.launches
