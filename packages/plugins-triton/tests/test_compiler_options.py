"""The options of Triton's compiler that a config sets."""

import pytest

from opmux_triton.compiler_options import CompilerOptions


def test_only_options_that_are_set_reach_the_compiler() -> None:
    assert CompilerOptions(num_warps=4, num_stages=2).compiler_options() == {"num_warps": 4, "num_stages": 2}
    bounded = CompilerOptions(num_warps=4, num_stages=2, maxnreg=128)
    assert bounded.compiler_options() == {"num_warps": 4, "num_stages": 2, "maxnreg": 128}
    amd = CompilerOptions(num_warps=8, num_stages=1, matrix_instr_nonkdim=16, waves_per_eu=2)
    assert amd.compiler_options() == {
        "num_warps": 8, "num_stages": 1, "matrix_instr_nonkdim": 16, "waves_per_eu": 2,
    }  # fmt: skip


def test_options_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^num_warps expected a power of two, got 6$"):
        CompilerOptions(num_warps=6, num_stages=1)
    with pytest.raises(ValueError, match=r"^num_stages expected at least 1, got 0$"):
        CompilerOptions(num_warps=4, num_stages=0)
    with pytest.raises(ValueError, match=r"^maxnreg expected at least 24, got 16$"):
        CompilerOptions(num_warps=4, num_stages=2, maxnreg=16)
