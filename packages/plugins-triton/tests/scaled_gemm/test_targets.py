"""Scaled products under the interpreter, in every format and block; what is launched when nothing is to be done."""

from collections.abc import Callable

import pytest
import torch

from opmux_triton.launch import recording
from opmux_triton.scaled_gemm import targets
from opmux_triton.scaled_gemm.configs import ScaledConfig

CONFIG = ScaledConfig(block_m=64, block_n=64, block_k=128, num_warps=4, num_stages=3)
FP8 = torch.float8_e4m3fn


def made(*shape: int, dtype: torch.dtype = FP8) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


@pytest.mark.long
def test_interpreted_products_agree_with_the_references(interpret: Callable[[str], None]) -> None:
    interpret("scaled_gemm/interpreted_products.py")


def test_an_empty_result_launches_nothing() -> None:
    scale = made(0, 1, dtype=torch.float32), made(5, 1, dtype=torch.float32)
    with recording("sm_90") as recorded:
        out = targets.scaled_linear(made(0, 64), made(5, 64), *scale, None, out_dtype=torch.bfloat16, config=CONFIG)
        targets.scaled_linear_accumulate(
            made(0, 5, dtype=torch.float32), made(0, 64), made(5, 64), *scale, config=CONFIG
        )
    assert out.shape == (0, 5)
    assert out.dtype == torch.bfloat16
    assert not recorded.launches


def test_rows_that_do_not_lie_in_vectors_are_read_in_narrower_blocks() -> None:
    scale = made(1, 1, dtype=torch.float32), made(1, 1, dtype=torch.float32)
    for k, expected in ((512, 128), (272, 128), (500, 32)):
        with recording("sm_90") as recorded:
            targets.scaled_linear(made(70, k), made(80, k), *scale, None, out_dtype=torch.bfloat16, config=CONFIG)
        assert [launch.meta["BLOCK_K"] for launch in recorded.launches] == [expected], k


def test_a_block_of_columns_shares_its_scales() -> None:
    with pytest.raises(ValueError, match=r"^block_k expected at most 128, the columns that share a scale, got 256$"):
        ScaledConfig(block_m=64, block_n=64, block_k=256, num_warps=4, num_stages=3)
    with pytest.raises(ValueError, match=r"^uneven expected at most 128, the columns that share a scale, got 256$"):
        ScaledConfig(block_m=64, block_n=64, block_k=64, uneven=256, num_warps=4, num_stages=3)
