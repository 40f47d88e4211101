"""Which tensors can be read through a tensor descriptor."""

import torch

from opmux_triton.descriptors import descriptor, descriptor_strides, has_descriptor


def made(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def test_contiguous_tensors_have_one() -> None:
    assert has_descriptor(made(2, 3, 4, 64))
    assert has_descriptor(made(2, 3, 4, 4, dtype=torch.float32))


def test_rows_that_are_no_multiple_of_16_bytes_have_none() -> None:
    assert not has_descriptor(made(2, 3, 4, 65)[..., :64])
    assert not has_descriptor(made(2, 3, 4, 4))


def test_unit_stride_and_elements_are_needed() -> None:
    assert not has_descriptor(made(2, 3, 4, 128)[..., ::2])
    assert not has_descriptor(made(2, 0, 4, 64))
    assert not has_descriptor(torch.zeros(2, 3, 4, 65, dtype=torch.bfloat16).view(-1)[1 : 1 + 1536].view(2, 3, 4, 64))


def test_a_broadcast_dim_has_none_unless_its_size_is_one() -> None:
    assert not has_descriptor(made(1, 3, 4, 64).expand(2, 3, 4, 64))
    one = made(2, 3, 1, 64).as_strided((2, 3, 1, 64), (192, 64, 5, 1))
    assert has_descriptor(one)
    assert descriptor_strides(one) == [192, 64, 16, 1]


def test_a_descriptor_is_of_the_whole_tensor() -> None:
    made_ = descriptor(made(2, 3, 4, 64), [1, 2, 1, 64])
    assert (made_.shape, made_.strides, made_.block_shape) == ([2, 3, 4, 64], [768, 256, 64, 1], [1, 2, 1, 64])
