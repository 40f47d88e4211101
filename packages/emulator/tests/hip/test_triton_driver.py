"""Triton's own driver and launcher, compiled as for a GPU, launch on the emulator."""

import pytest
import torch
import triton_kernels

from opmux_emulator.hip.triton_driver import playing


@pytest.fixture(autouse=True)
def quiet() -> None:
    import warnings

    warnings.simplefilter("ignore")


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950"])
def test_jit(arch: str) -> None:
    x, y, out = torch.randn(5008), torch.randn(5008), torch.zeros(5008)
    with playing(arch) as driver:
        assert driver.get_current_target().arch == arch
        properties = driver.utils.get_device_properties(0)
        assert (properties["warpSize"], properties["max_shared_mem"]) == (64, 163840 if arch == "gfx950" else 65536)
        triton_kernels.add[(5,)](x, y, out, 5008, BLOCK=1024)
    assert torch.equal(out, x + y)


def test_gemm() -> None:
    a, b, c = torch.randn(128, 128).half(), torch.randn(128, 128).half(), torch.zeros(128, 128)
    with playing("gfx942"):
        triton_kernels.gemm[(2, 2)](a, b, c, 128, 128, 128, BM=64, BN=64, BK=64, num_warps=4)
    torch.testing.assert_close(c, a.float() @ b.float().T, rtol=1e-5, atol=1e-4)


def test_a_judgement_is_raised_by_the_launch_and_the_process_goes_on() -> None:
    x, y, out = torch.randn(5008), torch.randn(5008), torch.zeros(10)
    with playing("gfx942"):
        with pytest.raises(RuntimeError, match=r"Code: 700.*add: out-of-bounds: .* outside its 0x28 bytes"):
            triton_kernels.add[(5,)](x, y, out, 5008, BLOCK=1024)
        fine = torch.zeros(5008)
        triton_kernels.add[(5,)](x, y, fine, 5008, BLOCK=1024)
    assert torch.equal(fine, x + y)


def test_views_of_one_storage() -> None:
    whole = torch.randn(2 * 5008)
    out = torch.zeros(5008)
    with playing("gfx942"):
        triton_kernels.add[(5,)](whole[:5008], whole[5008:], out, 5008, BLOCK=1024)
    assert torch.equal(out, whole[:5008] + whole[5008:])
