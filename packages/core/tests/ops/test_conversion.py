"""Conversions of scales and of 8-bit floats, code by code."""

import math

import pytest
import torch

import opmux
from opmux.ops.conversion import convert_fp8, convert_scale

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


@pytest.mark.parametrize("blocks", [1, 4, 7, 8])
@pytest.mark.parametrize("m_first", [False, True], ids=["k", "m"])
def test_packed_scales_are_a_view(blocks, m_first):
    """As the docs have it: four along k to an int32, the first in the lowest byte."""
    scale = opmux.convert_scale(torch.rand(6, blocks) + 1e-3, dtype=E8M0)
    padded = torch.nn.functional.pad(scale.view(torch.uint8), (0, -blocks % 4))
    packed = padded.view(torch.int32)
    assert packed.shape == (6, -(-blocks // 4))
    assert int(packed[2, 0]) & 255 == int(scale.view(torch.uint8)[2, 0])
    if m_first:
        packed = packed.mT.contiguous().mT
    unpacked = packed.contiguous().view(E8M0)[..., :blocks]
    same(opmux.convert_scale(unpacked, dtype=torch.float32), scale.float())
