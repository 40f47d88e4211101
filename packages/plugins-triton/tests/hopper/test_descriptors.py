"""Descriptors of heads for Gluon kernels."""

from planted_launches import made

from opmux_triton.hopper.descriptors import head_descriptor


def test_a_block_is_rows_of_one_head() -> None:
    x = made(2, 300, 4, 128)
    whole, half = head_descriptor(x, 64), head_descriptor(x, 16, 64)
    assert whole.block_shape == [1, 64, 1, 128]
    assert half.block_shape == [1, 16, 1, 64]
    assert whole.shape == [2, 300, 4, 128]
    assert whole.strides == [300 * 4 * 128, 4 * 128, 128, 1]
    assert whole.layout.swizzle_byte_width == 128
