"""Launch parameters of the products of a few rows, and of sums of columns."""

import pytest

from opmux.plugin import parse_arch
from opmux_triton.archs import PORTABLE, wave_size
from opmux_triton.gemm import heuristics
from opmux_triton.gemm.configs import LinearConfig
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


def linear(name: str, m: int, n: int, k: int) -> LinearConfig:
    """What a linear layer gets."""
    return heuristics.linear(parse_arch(name), {"n": n, "k": k, "bucket(tokens)": (m - 1).bit_length()})


@pytest.mark.parametrize(
    ("m", "n", "k", "rows", "blocks", "warps"),
    [(2, 4096, 4096, 1, 4, 1), (2, 1536, 22016, 2, 2, 4), (2, 8192, 1024, 4, 1, 1), (3, 2048, 896, 2, 2, 1)],
)
def test_a_few_rows_keep_bytes_under_way(m: int, n: int, k: int, rows: int, blocks: int, warps: int) -> None:
    made = linear("sm_90", m, n, k).vectors
    assert made is not None
    assert (made.rows, made.blocks, made.num_warps, made.block_k) == (rows, blocks, warps, 256 * warps)
    assert made.otherwise == heuristics.halves(parse_arch("sm_90"), 1 << (m - 1).bit_length(), n, k)


@pytest.mark.parametrize(
    ("name", "m", "n", "k"),
    [("sm_90", 2, 14336, 1024), ("sm_90", 3, 8192, 8192), ("sm_90", 5, 896, 896), ("sm_80", 2, 4096, 4096)],
)
def test_tiles_take_the_others(name: str, m: int, n: int, k: int) -> None:
    assert linear(name, m, n, k).tiles is not None


@pytest.mark.parametrize(("n", "programs"), [(8448, 1), (10240, 2), (16896, 2), (20480, 3), (28672, 1)])
def test_tiles_of_a_few_rows_are_resident_at_once(n: int, programs: int) -> None:
    made = linear("sm_90", 8, n, 4096).tiles
    assert made is not None
    assert made.per_unit == programs


def test_the_cpu_takes_little() -> None:
    assert (vector(parse_arch("cpu"), 64, 64).rows, columns(parse_arch("cpu")).block) == (4, 16)
