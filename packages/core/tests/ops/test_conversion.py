"""Conversions of scales and of 8-bit floats, code by code."""

import math

import pytest
import torch

import opmux
from opmux.errors import InvalidArgument
from opmux.ops.conversion import convert_fp8, convert_scale, pack_scale, unpack_scale

E8M0 = torch.float8_e8m0fnu
NAN, INF = float("nan"), float("inf")
ONE = torch.ones(1, 1)


def codes(dtype):
    """All 256 codes of an 8-bit float, as a matrix."""
    return torch.arange(256, dtype=torch.uint8).view(dtype).reshape(16, 16)


def same(found, expected):
    torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=0, equal_nan=True)


def test_e4m3_to_fnuz_keeps_the_product_with_the_scale():
    q, scale = convert_fp8.reference(codes(torch.float8_e4m3fn), ONE, dtype=torch.float8_e4m3fnuz)
    assert scale.item() == 2.0
    same(q.double() * 2, codes(torch.float8_e4m3fn))


def test_fnuz_to_e4m3_keeps_all_but_what_ocp_lacks():
    before = codes(torch.float8_e4m3fnuz)
    q, scale = convert_fp8.reference(before, ONE, dtype=torch.float8_e4m3fn)
    assert scale.item() == 1.0
    values = before.double()
    odd = (values.abs() * 2**10) % 2 == 1
    same(q.double()[~odd], values[~odd])
    apart = (q.double() - values)[odd].abs()
    assert 0 < len(apart) <= 16
    assert (apart == 2.0**-10).all()


@pytest.mark.parametrize(
    ("source", "dtype"),
    [(torch.float8_e5m2, torch.float8_e5m2fnuz), (torch.float8_e5m2fnuz, torch.float8_e5m2)],
)
def test_e5m2(source, dtype):
    before = codes(source)
    q, scale = convert_fp8.reference(before, ONE, dtype=dtype)
    assert scale.item() == 1.0
    values = before.double().clamp(-57344, 57344)
    odd = (values.abs() * 2**17) % 2 == 1
    same(q.double()[~odd], values[~odd])
    assert torch.equal(odd, torch.zeros_like(odd)) == (source == torch.float8_e5m2)


def test_values_past_the_largest_saturate_and_the_scales_stay():
    before = torch.tensor([[57344.0, -500.0, INF, NAN, 0.3]]).to(torch.float8_e5m2)
    q, scale = convert_fp8.reference(before, ONE, dtype=torch.float8_e4m3fn)
    same(q, torch.tensor([[448.0, -448.0, 448.0, NAN, 0.3125]]))
    assert scale.item() == 1.0


def test_powers_of_two_are_kept_and_other_scales_rounded_up():
    exponents = torch.arange(-127, 128).double()
    powers = (2.0**exponents).float()[:, None]
    stored = convert_scale.reference(powers, dtype=E8M0)
    assert stored.view(torch.uint8).flatten().tolist() == list(range(255))
    same(convert_scale.reference(stored, dtype=torch.float32), powers)
    for value in (1.001, 3.0, 0.7, 5e-39, 1e-3):
        found = convert_scale.reference(torch.full((1, 1), value), dtype=E8M0).float().item()
        assert found == 2.0 ** math.ceil(math.log2(value))


def test_scales_that_are_no_positive_finite_numbers():
    scale = torch.tensor([[0.0, -0.0, 2.0**-140, 3.4e38, INF, NAN, -1.0]])
    stored = convert_scale.reference(scale, dtype=E8M0).view(torch.uint8)
    assert stored.tolist() == [[0, 0, 0, 254, 255, 255, 255]]


@pytest.mark.parametrize(("dtype", "padded"), [(torch.float32, 8), (E8M0, 16)], ids=str)
def test_the_transposed_layout_pads_columns_to_16_bytes(dtype, padded):
    scale = torch.rand(2, 5, 3) + 0.5
    plain = convert_scale.reference(scale, dtype=dtype)
    found = opmux.convert_scale(scale, dtype=dtype, scale_major="m", backend="reference")
    assert found.shape == (2, 5, 3)
    assert found.stride() == (3 * padded, 1, padded)
    same(found, plain)
    same(convert_scale.reference(found, dtype=torch.float32), plain)


def test_results_are_tensors_of_their_own():
    scale = torch.rand(3, 2)
    found = convert_scale.reference(scale, dtype=torch.float32)
    _, scale_out = convert_fp8.reference(codes(torch.float8_e5m2), scale, dtype=torch.float8_e5m2)
    for result in (found, scale_out):
        assert torch.equal(result, scale)
        assert result.data_ptr() != scale.data_ptr()


def test_four_scales_to_an_int32_the_first_in_the_lowest_byte():
    scale = torch.tensor([[1.0, 2.0, 0.5, 3.0, 4.0], [INF, NAN, -1.0, 0.0, 2.0**-126]])
    packed = pack_scale.reference(scale)
    assert packed.dtype == torch.int32
    bytes_of = [[int(word) >> shift & 255 for word in row for shift in (0, 8, 16, 24)] for row in packed]
    assert bytes_of == [[127, 128, 126, 129, 129, 0, 0, 0], [255, 255, 255, 0, 1, 0, 0, 0]]


@pytest.mark.parametrize("blocks", [0, 1, 4, 7, 8])
@pytest.mark.parametrize("major", ["k", "m"])
@pytest.mark.parametrize("dtype", [torch.float32, E8M0], ids=str)
def test_unpacking_restores_what_was_packed(blocks, major, dtype):
    scale = convert_scale.reference(torch.rand(2, 6, blocks) + 1e-3, dtype=E8M0)
    packed = opmux.pack_scale(scale.to(dtype), scale_major=major, backend="reference")
    words = -(-blocks // 4)
    assert packed.shape == (2, 6, words)
    if words > 1:
        assert packed.stride() == ((words * 8, 1, 8) if major == "m" else (words * 6, words, 1))
    found = opmux.unpack_scale(packed, k_blocks=blocks, dtype=dtype, scale_major=major, backend="reference")
    assert found.dtype == dtype
    assert found.stride() == convert_scale.reference(scale, dtype=dtype, scale_major=major).stride()
    same(found, scale)


def test_every_byte_is_unpacked():
    codes = torch.arange(256, dtype=torch.uint8)
    found = unpack_scale.reference(codes.view(torch.int32).reshape(8, 8), k_blocks=32, dtype=torch.float32)
    same(found.flatten(), codes.view(E8M0).float())


@pytest.mark.parametrize("k_blocks", [4, 9, -1])
def test_a_number_of_scales_that_the_integers_do_not_hold(k_blocks):
    with pytest.raises(InvalidArgument) as raised:
        opmux.unpack_scale(torch.zeros(3, 2, dtype=torch.int32), k_blocks=k_blocks, dtype=torch.float32)
    assert str(raised.value).splitlines()[0] == (
        "unpack_scale: `k_blocks` expected k_blocks >= 0 and words == -(-k_blocks // 4), got "
        f"k_blocks = {k_blocks}, words = 2; `k_blocks` is the number of scales in a row, of which each int32 holds 4"
    )
