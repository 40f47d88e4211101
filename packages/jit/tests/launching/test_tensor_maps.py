"""Tensor maps: what the driver is asked for, and what is refused before it."""

import pytest
import torch

from opmux.plugin import InvalidArgument
from opmux_jit import LoadFailed
from opmux_jit.launching import Fill, Promotion, Swizzle, tensor_map


@pytest.fixture
def tensor(driver, monkeypatch) -> torch.Tensor:
    """On the CPU, and said to be on GPU 0."""
    monkeypatch.setattr(torch.Tensor, "get_device", lambda self: 0)
    return torch.zeros(6, 64, 32, dtype=torch.bfloat16)


def test_the_driver_gets_dims_from_the_innermost_on(driver, tensor) -> None:
    found = tensor_map(tensor, (1, 16, 32), swizzle=Swizzle.BYTES_64, promotion=Promotion.BYTES_256, fill=Fill.NAN)
    address = tensor.data_ptr()
    assert driver.log() == [
        f"encode dtype 9 address {address} interleave 0 swizzle 2 promotion 3 fill 1 dims 32/0/32/1 64/64/16/1 "
        "6/4096/1/1"
    ]
    assert len(found) == 128
    assert found[:8] == address.to_bytes(8, "little")


def test_one_dim_and_other_dtypes(driver, tensor) -> None:
    tensor_map(torch.zeros(256, dtype=torch.float8_e4m3fn), (128,))
    assert driver.log()[0].startswith("encode dtype 0 ")
    tensor_map(torch.zeros(4, 8).T.contiguous().T.T, (8, 4))
    assert driver.log()[0].endswith("dims 4/0/4/1 8/16/8/1")


def test_a_map_goes_to_a_kernel_by_value(driver, tensor) -> None:
    from opmux_jit.launching import Module, device
    from opmux_jit.native.library import launcher

    native, where = launcher(), device(0, "nvidia")
    module = Module(b"k 128\0", where)
    shape = native.shape(
        where.driver, 0, module.function("k").handle, "k", "m", (1, 1, 1), 0, (1, 1, 1), False, False, False, module
    )
    made = tensor_map(tensor, (1, 16, 32))
    driver.log()
    native.launch(shape)(1, 1, 1, 7, made)
    assert driver.log()[0].endswith(f"args {made.hex()}")


@pytest.mark.parametrize(
    ("given", "box", "message"),
    [
        (lambda: torch.zeros(4, 4, dtype=torch.complex64), (1, 1), "`tensor` expected a dtype of uint8, "),
        (
            lambda: torch.zeros(4, 8).T,
            (1, 1),
            "`tensor` expected 1 to 5 dims, the last of stride 1, got strides (1, 8)",
        ),
        (lambda: torch.zeros(1, 1, 1, 1, 1, 8), (1,) * 6, "`tensor` expected 1 to 5 dims, "),
        (lambda: torch.zeros(4, 6), (1, 1), "`tensor` expected multiples of 16 bytes, got strides of [24] bytes "),
        (lambda: torch.zeros(9)[1:], (1,), "`tensor` expected multiples of 16 bytes, got strides of [] bytes "),
        (lambda: torch.zeros(4, 8), (1,), "`box` expected 2 sizes from 1 to 256, got (1,); give one for each dim"),
        (lambda: torch.zeros(4, 8), (257, 1), "`box` expected 2 sizes from 1 to 256, got (257, 1)"),
    ],
)
def test_what_cannot_be_copied_so_is_refused(tensor, given, box, message) -> None:
    with pytest.raises(InvalidArgument) as caught:
        tensor_map(given(), box)
    assert str(caught.value).startswith(f"tensor_map: {message}")


def test_what_the_driver_refuses_is_said(driver, tensor) -> None:
    driver.fail("encode", 1)
    with pytest.raises(LoadFailed) as caught:
        tensor_map(tensor, (1, 16, 32))
    assert str(caught.value) == (
        "tensor_map: cuTensorMapEncodeTiled: CUDA_ERROR_SOME (1): the text of the error (box (1, 16, 32), 0)"
    )


def test_an_old_driver_makes_no_maps(old_driver, tensor) -> None:
    with pytest.raises(LoadFailed, match=r"libold.so cannot make tensor maps: that takes CUDA 12 or newer"):
        tensor_map(tensor, (1, 16, 32))
