"""The reference of quantize, against a search for the nearest of the dtype's codes, block by block."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import opmux
from opmux.errors import InvalidArgument
from opmux.ops.quantization import dequantize, quantize, static_quantize

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
FP8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)
QUANTIZED = (*FP8, torch.int8)
BLOCKS = ((1, 128), (1, -1), (-1, -1), (128, 128), (1, 32))
LAYOUTS = ("contiguous", "strided", "offset", "transposed")
SHAPES = ((5, 300), (130, 131), (2, 3, 129), (1, 1))
NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def laid_out(values: Tensor, layout: str) -> Tensor:
    """The same values in another memory layout, with NaN around them."""
    if layout == "contiguous":
        return values.clone()
    if layout == "transposed":
        return values.mT.contiguous().mT
    step = 2 if layout == "strided" else 1
    memory = values.new_full((*values.shape[:-1], step * values.shape[-1] + 3), NAN)
    view = memory[..., 3:][..., ::step]
    view.copy_(values)
    return view


def codes_of(dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Every finite value of the dtype that quantize uses, and whether its code is odd."""
    codes = np.arange(256, dtype=np.uint8)
    values = torch.from_numpy(codes).view(dtype).double().numpy()
    used = np.isfinite(values) & (np.abs(values) <= 127 if dtype == torch.int8 else True)
    return values[used], codes[used] % 2


def nearest(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """The nearest value of the dtype to each finite value, the even code of two."""
    candidates, odd = codes_of(dtype)
    distance = np.abs(values[:, None] - candidates)
    tied = distance == distance.min(axis=1, keepdims=True)
    return candidates[np.where(tied, odd, 2).argmin(axis=1)]


def naive_quantize(x: Tensor, dtype: torch.dtype, block: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Quantise one matrix of finite values; returns q's values and the scales."""
    m, k = x.shape
    rows, columns = (m if block[0] == -1 else block[0]), (k if block[1] == -1 else block[1])
    precision = np.float64 if x.dtype == torch.float64 else np.float32
    values = x.double().numpy().astype(precision)
    largest = precision(codes_of(dtype)[0].max())
    q = np.zeros((m, k))
    scale = np.zeros((math.ceil(m / rows), math.ceil(k / columns)), dtype=np.float32)
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            part = np.s_[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]
            amax = np.abs(values[part]).max()
            scale[i, j] = np.float32(amax / largest) if amax > 0 else 1
            scaled = (values[part] / precision(scale[i, j])).astype(np.float64)
            q[part] = nearest(scaled.ravel(), dtype).reshape(scaled.shape)
    return torch.from_numpy(q), torch.from_numpy(scale)


@pytest.mark.parametrize("block", BLOCKS, ids=str)
@pytest.mark.parametrize("dtype", QUANTIZED, ids=str)
@pytest.mark.parametrize("x_dtype", DTYPES, ids=str)
def test_quantize(x_dtype, dtype, block):
    for shape in SHAPES:
        x = (torch.randn(shape, dtype=torch.float64) * torch.logspace(-2, 2, shape[-1]).double()).to(x_dtype)
        x[..., 0, :] = 0  # a row of zeros
        q, scale = quantize.reference(x, dtype=dtype, block=block)
        assert q.dtype == dtype
        assert scale.dtype == torch.float32
        assert q.is_contiguous()
        assert scale.is_contiguous()
        matrices = zip(
            x.reshape(-1, *shape[-2:]),
            q.reshape(-1, *shape[-2:]),
            scale.reshape(-1, *scale.shape[-2:]),
            strict=True,
        )
        for one, one_q, one_scale in matrices:
            exact_q, exact_scale = naive_quantize(one, dtype, block)
            assert torch.equal(one_scale, exact_scale)
            assert torch.equal(one_q.double(), exact_q)


@pytest.mark.parametrize(("layout", "scale_major"), [(layout, "m") for layout in LAYOUTS] + [("offset", "k")], ids=str)
@pytest.mark.parametrize("block", BLOCKS, ids=str)
@pytest.mark.parametrize("shape", [(5, 300), (130, 131), (2, 2, 8, 64)], ids=str)
def test_layouts_of_x_and_of_the_scales(shape, block, scale_major, layout):
    values = torch.randn(shape).bfloat16()
    q, scale = quantize.reference(values, dtype=torch.int8, block=block)
    other_q, other_scale = quantize.reference(
        laid_out(values, layout), dtype=torch.int8, block=block, scale_major=scale_major
    )
    assert torch.equal(q, other_q)
    assert torch.equal(scale, other_scale)
    assert other_q.is_contiguous()
    if scale_major == "k":
        assert other_scale.is_contiguous()
        return
    m_blocks, k_blocks = scale.shape[-2:]
    padded = -(-m_blocks // 4) * 4
    assert other_scale.stride()[-2:] == (1, padded)
    memory = torch.zeros(*scale.shape[:-2], k_blocks, padded)
    memory[..., :m_blocks] = scale.mT
    assert other_scale.stride()[:-2] == memory.stride()[:-2]
    assert torch.equal(other_scale.as_strided(memory.shape, memory.stride()), memory)  # the padding is zero


@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_every_code_is_itself(dtype):
    values = torch.from_numpy(codes_of(dtype)[0])[None]
    for x_dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        if (values.to(x_dtype).double() == values).all():
            q, scale = quantize.reference(values.to(x_dtype), dtype=dtype, block=(1, -1))
            assert scale.item() == 1.0
            assert torch.equal(q.double(), values)


@pytest.mark.parametrize("dtype", QUANTIZED, ids=str)
def test_ties_go_to_the_even_code(dtype):
    candidates, odd = codes_of(dtype)
    order = np.unique(candidates, return_index=True)[1]
    candidates, odd = candidates[order], odd[order]
    middles = (candidates[:-1] + candidates[1:]) / 2
    expected = np.where(odd[:-1] == 0, candidates[:-1], candidates[1:])
    x = torch.from_numpy(np.append(middles, candidates.max()))[None].float()  # with the largest, the scale is 1
    q, scale = quantize.reference(x, dtype=dtype, block=(1, -1))
    assert scale.item() == 1.0
    assert q.double()[0, :-1].tolist() == expected.tolist()


def test_int8_is_symmetric():
    x = torch.tensor([[-127.0, 127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 126.4]])
    q, scale = quantize.reference(x, dtype=torch.int8, block=(1, -1))
    assert scale.item() == 1.0
    assert q.tolist() == [[-127, 127, 0, 2, 2, 0, -2, 126]]
    q, _ = quantize.reference(torch.tensor([[-3.0, 1.0]]), dtype=torch.int8, block=(1, -1))
    assert q[0, 0] == -127


@pytest.mark.parametrize("dtype", QUANTIZED, ids=str)
def test_the_largest_value_of_a_block_saturates_and_never_overflows(dtype):
    x = torch.exp(60 * torch.rand(4096, 1) - 30) * torch.tensor([1.0, -1.0])
    q, _ = quantize.reference(x, dtype=dtype, block=(1, -1))
    largest = 127 if dtype == torch.int8 else torch.finfo(dtype).max
    assert q.double().tolist() == [[largest, -largest]] * 4096
    # Where the scale is subnormal, its own rounding brings x / scale past the largest value.
    tiny = (torch.linspace(0.6, 40.0, 500).double()[:, None] * largest * 2.0**-149).float()
    q, scale = quantize.reference(tiny, dtype=dtype, block=(1, -1))
    assert scale.isfinite().all()
    assert scale.gt(0).all()
    assert q.double().abs().max() == largest


@pytest.mark.parametrize("dtype", QUANTIZED, ids=str)
def test_zeros_and_what_underflows_have_scale_one(dtype):
    x = torch.zeros(3, 40)
    x[1, 3], x[2] = 2.0**-149, 1.0
    q, scale = quantize.reference(x, dtype=dtype, block=(1, 32))
    assert scale[:2].eq(1).all()
    assert q[:2].double().eq(0).all()
    assert scale[2].ne(1).all()


@pytest.mark.parametrize("dtype", QUANTIZED, ids=str)
@pytest.mark.parametrize("x_dtype", DTYPES, ids=str)
def test_a_nan_leaves_its_block_alone(x_dtype, dtype):
    x = torch.randn(2, 64).to(x_dtype)
    spoiled = x.clone()
    spoiled[0, 5] = NAN
    x[0, 5] = 0
    q, scale = quantize.reference(x, dtype=dtype, block=(1, 32))
    spoiled_q, spoiled_scale = quantize.reference(spoiled, dtype=dtype, block=(1, 32))
    assert torch.equal(spoiled_scale, scale)
    if dtype == torch.int8:
        assert torch.equal(spoiled_q, q)
    else:
        assert spoiled_q.double().isnan().nonzero().tolist() == [[0, 5]]
        assert torch.equal(spoiled_q.double().nan_to_num(nan=0.0), q.double())


@pytest.mark.parametrize("dtype", QUANTIZED, ids=str)
def test_a_block_of_nan(dtype):
    q, scale = quantize.reference(torch.full((1, 32), NAN), dtype=dtype, block=(1, 32))
    assert scale.item() == 1.0
    assert q.double().eq(0).all() if dtype == torch.int8 else q.double().isnan().all()


@pytest.mark.parametrize("dtype", QUANTIZED, ids=str)
@pytest.mark.parametrize("x_dtype", DTYPES, ids=str)
def test_an_infinity_spoils_its_block(x_dtype, dtype):
    x = torch.randn(2, 64).to(x_dtype)
    x[0, 5], x[0, 6] = INF, -INF
    q, scale = quantize.reference(x, dtype=dtype, block=(1, 32))
    assert scale[0, 0] == INF
    assert (q.double()[0, :32] * scale[0, 0].double()).isnan().all()
    expected = torch.zeros(32).double()
    expected[5:7] = 0.0 if dtype == torch.int8 else NAN
    torch.testing.assert_close(q.double()[0, :32], expected, equal_nan=True, rtol=0, atol=0)
    clean_q, clean_scale = quantize.reference(x[:, 32:], dtype=dtype, block=(1, 32))
    assert torch.equal(scale[:, 1:], clean_scale)
    assert torch.equal(q[:, 32:].double(), clean_q.double())


@pytest.mark.parametrize("scale_major", ["k", "m"])
@pytest.mark.parametrize("block", BLOCKS, ids=str)
@pytest.mark.parametrize("shape", [(0, 64), (3, 0), (0, 0), (2, 0, 5), (0, 3, 5)], ids=str)
def test_empty_dims(shape, block, scale_major):
    q, scale = quantize.reference(torch.empty(shape), dtype=torch.float8_e4m3fn, block=block, scale_major=scale_major)
    assert q.shape == shape
    blocks = [
        min(size, 1) if length == -1 else math.ceil(size / length)
        for size, length in zip(shape[-2:], block, strict=True)
    ]
    assert scale.shape == (*shape[:-2], *blocks)
    assert scale.dtype == torch.float32


def test_the_default_is_a_row_of_128():
    x = torch.randn(3, 200)
    for default, explicit in zip(
        quantize.reference(x, dtype=torch.int8),
        quantize.reference(x, dtype=torch.int8, block=(1, 128), scale_major="k"),
        strict=True,
    ):
        assert torch.equal(default, explicit)
        assert default.stride() == explicit.stride()


@pytest.mark.parametrize("scale_major", ["k", "m"])
@pytest.mark.parametrize("shape", [(1, 1), (4, 128)], ids=str)
def test_outputs_are_fresh_and_inputs_unchanged(shape, scale_major):
    x = torch.randn(shape)
    before = x.clone()
    q, scale = quantize.reference(x, dtype=torch.int8, scale_major=scale_major)
    assert len({t.untyped_storage().data_ptr() for t in (x, q, scale)}) == 3
    assert torch.equal(x, before)


@pytest.mark.parametrize("scale_major", ["k", "m"])
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_runs_on_fake_tensors(block, scale_major):
    x = torch.randn(2, 5, 300).bfloat16()
    options = {"dtype": torch.float8_e4m3fn, "block": block, "scale_major": scale_major}
    real = quantize.reference(x, **options)
    with FakeTensorMode() as mode:
        fake = quantize.reference(mode.from_tensor(x), **options)
    assert [(f.shape, f.dtype, f.stride()) for f in fake] == [(r.shape, r.dtype, r.stride()) for r in real]


def test_a_dtype_that_quantize_does_not_store():
    with pytest.raises(InvalidArgument) as raised:
        quantize.reference(torch.randn(2, 3), dtype=torch.bfloat16)
    assert str(raised.value).splitlines() == [
        "quantize: `dtype` expected one of float8_e4m3fn, float8_e4m3fnuz, float8_e5m2, float8_e5m2fnuz, int8, "
        "got bfloat16; pass the one that the consumer of q reads"
    ]


@pytest.mark.parametrize("block", BLOCKS, ids=str)
@pytest.mark.parametrize("dtype", QUANTIZED, ids=str)
def test_static_quantize_and_dequantize(dtype, block):
    for shape in SHAPES:
        x = torch.randn(shape).bfloat16()
        q, scale = quantize.reference(x, dtype=dtype, block=block)
        assert torch.equal(static_quantize.reference(x, scale, dtype=dtype).double(), q.double())
        rows, columns = (x.shape[-2] if block[0] == -1 else block[0]), (x.shape[-1] if block[1] == -1 else block[1])
        row = torch.arange(x.shape[-2])[:, None] // rows
        column = torch.arange(x.shape[-1])[None, :] // columns
        values = q.double() * scale.double()[..., row, column]
        for out_dtype in DTYPES:
            out = dequantize.reference(q, scale, out_dtype=out_dtype)
            assert out.dtype == out_dtype
            torch.testing.assert_close(out.double(), values, rtol=torch.finfo(out_dtype).eps, atol=1e-7)


def test_static_scales_saturate():
    x = torch.tensor([[1.0, -3.0, 1000.0, -INF, NAN, 0.26]])
    scale = torch.full((1, 1), 0.5)
    q = static_quantize.reference(x, scale, dtype=torch.float8_e4m3fn)
    torch.testing.assert_close(
        q.double(), torch.tensor([[2.0, -6.0, 448.0, -448.0, NAN, 0.5]]).double(), equal_nan=True, rtol=0, atol=0
    )
    assert static_quantize.reference(x, scale, dtype=torch.int8).tolist() == [[2, -6, 127, -127, 0, 1]]


def test_one_scale_for_no_rows():
    """A static scale is known before there are tokens."""
    q = opmux.static_quantize(torch.empty(0, 64), torch.ones(1, 1), dtype=torch.int8)
    assert q.shape == (0, 64)
    assert opmux.dequantize(q, torch.ones(1, 1), out_dtype=torch.bfloat16).shape == (0, 64)


@pytest.mark.parametrize("sign", [1, -1])
def test_float64_is_rounded_once(sign):
    above, below = 1.0625 * (1 + 2.0**-40), 1.0625 * (1 - 2.0**-40)  # 1.0625 lies halfway between 1 and 1.125
    x = sign * torch.tensor([[above, below, 1.0625, 448.0]], dtype=torch.float64)
    q = opmux.static_quantize(x, torch.ones(1, 1), dtype=torch.float8_e4m3fn)
    assert q.double().tolist() == [[sign * 1.125, sign * 1.0, sign * 1.0, sign * 448.0]]


@pytest.mark.parametrize("op", ["static_quantize", "dequantize"])
def test_scales_of_no_block_are_refused_with_the_shapes_that_are_expected(op):
    x = torch.ones(64, 7000)
    options = {"dtype": torch.int8}
    if op == "dequantize":
        x, options = x.to(torch.float8_e4m3fn), {"out_dtype": torch.bfloat16}
    with pytest.raises(InvalidArgument) as raised:
        getattr(opmux, op)(x, torch.ones(64, 28), **options)
    assert str(raised.value).splitlines()[0] == (
        f"{op}: `scale` expected (m_blocks, k_blocks) in ((1, 1), (m, 1), (m, -(-k // 128)), "
        "(-(-m // 128), -(-k // 128)), (m, -(-k // 32))), got m_blocks = 64, k_blocks = 28, m = 64, k = 7000; "
        "scales of a matrix (64, 7000) have the shape (1, 1) for the whole, (64, 1) for rows, (64, 55) for blocks of "
        "1x128, (1, 55) for 128x128 or (64, 219) for 1x32"
    )
