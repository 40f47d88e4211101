"""Triton's own driver and launcher, compiled as for a GPU, launch on the emulator."""

import ctypes
import os

import numpy as np
import pytest
import torch
import triton_kernels

from opmux_emulator.hip import HipError, Runtime, library
from opmux_emulator.hip.triton_driver import merged, played, playing, registered


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


def shown(hip: Runtime) -> bytes:
    hip.lib.opmuxHipSettings.restype = ctypes.c_char_p
    return hip.lib.opmuxHipSettings()


def test_nested_and_left_it_plays_what_it_played_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_LIBHIP_PATH", "/opt/rocm/lib/libamdhip64.so")
    monkeypatch.delenv("OPMUX_HIP", raising=False)
    hip = Runtime()
    hip.call("opmuxHipPlay", b"gfx90a")
    x, y, out = torch.randn(5008), torch.randn(5008), torch.zeros(5008)
    with playing("gfx942"):
        with playing("gfx950", limit=7):
            assert hip.arch.startswith("gfx950")
            assert os.environ["OPMUX_HIP"].endswith(" limit=7")
        assert hip.arch.startswith("gfx942")
        assert os.environ["TRITON_LIBHIP_PATH"] == str(library())
        triton_kernels.add[(5,)](x, y, out, 5008, BLOCK=1024)
    assert torch.equal(out, x + y)
    assert shown(hip) == b"gfx90a"
    assert os.environ["TRITON_LIBHIP_PATH"] == "/opt/rocm/lib/libamdhip64.so"
    assert "OPMUX_HIP" not in os.environ


def test_left_by_an_exception_it_plays_what_it_played_before() -> None:
    hip = Runtime()
    hip.call("opmuxHipPlay", b"gfx90a")

    def fail() -> None:
        with playing("gfx950"):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert shown(hip) == b"gfx90a"


def test_settings_that_the_library_refuses() -> None:
    with (
        pytest.raises(HipError, match=r"opmuxHipPlay: expected gfx90a, gfx942 or gfx950, .* got sm_90"),
        played(Runtime(), "sm_90"),
    ):
        pass


def test_memory_that_the_caller_registered_stays_registered() -> None:
    hip, tensor = Runtime(), torch.zeros(64)
    address = ctypes.c_void_p(tensor.data_ptr())
    hip.call("hipHostRegister", address, ctypes.c_size_t(256), 0)
    with registered(hip, (tensor,)):
        pass
    hip.call("hipHostUnregister", address)  # an error if it was not registered any more


def test_storages_that_overlap_are_one_range() -> None:
    assert merged([(300, 4), (100, 50), (120, 10), (140, 20), (160, 5)]) == [(100, 60), (160, 5), (300, 4)]
    hip, whole = Runtime(), np.zeros(128, "f4")
    parts = (torch.from_numpy(whole[:80]), torch.from_numpy(whole[40:]))
    size = ctypes.c_size_t()
    with registered(hip, (parts,)):
        hip.call("hipMemPtrGetInfo", ctypes.c_void_p(whole.ctypes.data), ctypes.byref(size))
        assert size.value == 512
    with pytest.raises(HipError, match="is in no allocation"):
        hip.call("hipMemPtrGetInfo", ctypes.c_void_p(whole.ctypes.data), ctypes.byref(size))


def test_a_storage_that_cannot_be_registered() -> None:
    class Storage:
        def data_ptr(self) -> int:
            return 1 << 60

        def nbytes(self) -> int:
            return 4

    class Strange:
        def untyped_storage(self) -> Storage:
            return Storage()

    with (
        pytest.raises(HipError, match="hipHostRegister: 4 bytes at 0x1000000000000000 are more than"),
        registered(Runtime(), (Strange(),)),
    ):
        pass
