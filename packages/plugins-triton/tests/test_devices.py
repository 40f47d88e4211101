"""How many multiprocessors the host code counts with."""

import torch

from opmux_triton.devices import units
from opmux_triton.launch import recording


def test_the_cpu_counts_as_four() -> None:
    assert units(torch.empty(1)) == 4


def test_a_recording_counts_those_of_its_arch() -> None:
    with recording("gfx942"):
        assert units(torch.empty(1)) == 304
        with recording("sm_90"):
            assert units(torch.empty(1, device="meta")) == 132
