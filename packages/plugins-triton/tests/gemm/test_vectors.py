"""Launch parameters of one row's product, and of sums of columns."""

import pytest

from opmux.plugin import parse_arch
from opmux_triton.archs import PORTABLE, wave_size
from opmux_triton.gemm.vectors import columns, vector


@pytest.mark.parametrize("name", PORTABLE)
def test_a_program_reads_no_more_of_k_than_there_is(name: str) -> None:
    arch = parse_arch(name)
    for k in (1, 100, 512, 4096, 14336):
        made = vector(arch, 4096, k)
        assert made.block_k < 2 * max(128, k)
        assert made.num_warps * wave_size(name) <= 1024


@pytest.mark.parametrize("name", ["sm_80", "gfx942"])
def test_few_results_are_spread_over_more_programs(name: str) -> None:
    arch = parse_arch(name)
    assert vector(arch, 128, 4096).rows < vector(arch, 1 << 16, 4096).rows == 8


def test_the_cpu_takes_little() -> None:
    assert (vector(parse_arch("cpu"), 64, 64).rows, columns(parse_arch("cpu")).block) == (4, 16)
