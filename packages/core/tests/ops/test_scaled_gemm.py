"""Products of quantised matrices, against products of the values that the codes stand for, in float64."""

import pytest
import torch

import opmux
from opmux.errors import InvalidArgument
from opmux.ops.quantization import dequantize, quantize
from opmux.ops.scaled_gemm import scaled_linear, scaled_linear_accumulate

BLOCKS = (((-1, -1), (-1, -1)), ((1, -1), (1, -1)), ((1, 128), (128, 128)), ((1, 128), (1, 128)))
FP8, INT8 = torch.float8_e4m3fn, torch.int8


def operands(m, n, k, blocks, dtype=FP8, batch=()):
    """Codes and scales of two matrices, and the values that they stand for in float64."""
    (x, x_scale), (w, w_scale) = (
        quantize.reference(torch.randn(*shape), dtype=dtype, block=block)
        for shape, block in zip(((*batch, m, k), (n, k)), blocks, strict=True)
    )
    real = [dequantize.reference(q, s, out_dtype=torch.float64) for q, s in ((x, x_scale), (w, w_scale))]
    return (x, w, x_scale, w_scale), real


@pytest.mark.parametrize("dtype", [FP8, torch.float8_e4m3fnuz, torch.float8_e5m2, INT8], ids=str)
@pytest.mark.parametrize("blocks", BLOCKS, ids=str)
def test_scaled_linear(blocks, dtype):
    for m, n, k, batch in ((5, 7, 300, ()), (130, 131, 257, ()), (3, 129, 128, (2,)), (1, 1, 1, ())):
        tensors, (x, w) = operands(m, n, k, blocks, dtype, batch)
        bias = torch.randn(n).bfloat16()
        exact = x @ w.T
        for out_dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
            close = {"rtol": 2 * torch.finfo(out_dtype).eps, "atol": 1e-4 if out_dtype != torch.float64 else 1e-12}
            out = scaled_linear.reference(*tensors, out_dtype=out_dtype)
            assert out.dtype == out_dtype
            torch.testing.assert_close(out.double(), exact, **close)
            out = scaled_linear.reference(*tensors, bias, out_dtype=out_dtype)
            torch.testing.assert_close(out.double(), exact + bias.double(), **close)


@pytest.mark.parametrize("blocks", BLOCKS, ids=str)
def test_scaled_linear_accumulate(blocks):
    tensors, (x, w) = operands(33, 140, 300, blocks)
    out = torch.randn(33, 140)
    expected = out.double() + x @ w.T
    scaled_linear_accumulate.reference(out, *tensors)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-4)


def test_no_rows():
    tensors, _ = operands(0, 5, 256, BLOCKS[2])
    assert opmux.scaled_linear(*tensors, out_dtype=torch.bfloat16).shape == (0, 5)
    static = (tensors[0], tensors[1], torch.ones(1, 1), torch.ones(1, 1))
    assert opmux.scaled_linear(*static, out_dtype=torch.bfloat16).shape == (0, 5)


SHAPES = (
    "the scales of x (64, 512) and of w (300, 512) have the shapes (1, 1) and (1, 1) for tensors, (64, 1) and "
    "(300, 1) for tokens with channels, (64, 4) and (3, 4) for blocks of 1x128 with 128x128, or (64, 4) and "
    "(300, 4) for 1x128 with 1x128"
)


@pytest.mark.parametrize(
    ("of_x", "of_w", "said"),
    [
        ((64, 2), (3, 4), "`x_scale` expected last dims (64, 4), beside (3, 4) of `w_scale`, got shape [64, 2]"),
        ((32, 1), (300, 1), "`x_scale` expected last dims (64, 1), beside (300, 1) of `w_scale`, got shape [32, 1]"),
        ((64, 2), (1, 1), "`x_scale` expected last dims (1, 1), beside (1, 1) of `w_scale`, got shape [64, 2]"),
        ((64, 2), (7, 7), "`x_scale` expected last dims (1, 1) or (64, 1) or (64, 4), got shape [64, 2]"),
        (
            (64, 4), (3, 2),
            "`w_scale` expected last dims (3, 4) or (300, 4), beside (64, 4) of `x_scale`, got shape [3, 2]",
        ),
        ((64, 1), (3, 4), "`w_scale` expected last dims (300, 1), beside (64, 1) of `x_scale`, got shape [3, 4]"),
        ((1, 1), (300, 1), "`w_scale` expected last dims (1, 1), beside (1, 1) of `x_scale`, got shape [300, 1]"),
    ],
)  # fmt: skip
def test_scales_that_are_wrong_are_named_with_the_shape_that_is_expected(of_x, of_w, said):
    (x, w, *_), _ = operands(64, 300, 512, BLOCKS[2])
    with pytest.raises(InvalidArgument) as raised:
        opmux.scaled_linear(x, w, torch.ones(of_x), torch.ones(of_w), out_dtype=torch.bfloat16)
    assert str(raised.value).splitlines()[0] == f"scaled_linear: {said}; {SHAPES}"
    out = torch.zeros(64, 300)
    with pytest.raises(InvalidArgument) as raised:
        opmux.scaled_linear_accumulate(out, x, w, torch.ones(of_x), torch.ones(of_w))
    assert str(raised.value).splitlines()[0] == f"scaled_linear_accumulate: {said}; {SHAPES}"


def test_codes_of_two_dtypes_are_refused():
    (x, w, *scales), _ = operands(4, 5, 64, BLOCKS[1])
    with pytest.raises(InvalidArgument) as raised:
        opmux.scaled_linear(x, w.view(INT8), *scales, out_dtype=torch.bfloat16)
    assert str(raised.value).splitlines()[0] == (
        "scaled_linear: `w` expected float8_e4m3fn, the dtype of `x`, got int8; quantize both in one dtype"
    )
    with pytest.raises(InvalidArgument) as raised:
        opmux.scaled_linear(x, w.view(torch.float8_e4m3fnuz), *scales, out_dtype=torch.bfloat16)
    assert str(raised.value).splitlines()[0] == (
        "scaled_linear: `w` expected float8_e4m3fn, the dtype of `x`, got float8_e4m3fnuz; "
        "convert one of them, and its scales, with opmux.convert_fp8"
    )


def test_numbers_in_place_of_codes_are_refused_with_the_op_that_makes_codes():
    (x, w, *scales), _ = operands(4, 5, 64, BLOCKS[1])
    with pytest.raises(InvalidArgument) as raised:
        opmux.scaled_linear(x, w.float(), *scales, out_dtype=torch.bfloat16)
    assert str(raised.value).splitlines()[0] == (
        "scaled_linear: `w` expected a dtype of Quantized (float8_e4m3fn, float8_e4m3fnuz, float8_e5m2, "
        "float8_e5m2fnuz, int8), got float32; make codes and scales with opmux.quantize"
    )
    with pytest.raises(InvalidArgument) as raised:
        opmux.convert_fp8(x.view(INT8), scales[0], dtype=torch.float8_e5m2)
    assert str(raised.value).splitlines()[0].endswith("got int8; quantize the values in one of these")
