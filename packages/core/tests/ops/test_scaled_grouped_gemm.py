"""The references of grouped products of quantised matrices, against dequantised ones in float64."""

import pytest
import torch
from torch import Tensor

import opmux
from opmux.errors import GradientRefused, InvalidArgument
from opmux.testing.oracle import scale_of_elements

FP8, INT8 = torch.float8_e4m3fn, torch.int8
GROUPS, N, K = 4, 130, 200
OFFSETS, OF_ROWS = (0, 3, 3, 4, 11), [0] * 3 + [2] + [3] * 7
BLOCKS = {
    "tensor": ((1, 1), (1, 1)),
    "token": ((11, 1), (N, 1)),
    "1x128 with 128x128": ((11, 2), (2, 2)),
    "1x128 with 1x128": ((11, 2), (N, 2)),
}


def codes(generator: torch.Generator, dtype: torch.dtype, *sizes: int) -> Tensor:
    return (30 * torch.randn(*sizes, generator=generator)).clamp(-127, 127).to(dtype)


def operands(block: str, dtype: torch.dtype, m: int = 11) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    of_x, of_w = BLOCKS[block]
    x, w = codes(generator, dtype, m, K), codes(generator, dtype, GROUPS, N, K)
    x_scale, w_scale = (torch.rand(*s, generator=generator) + 0.5 for s in (of_x, (GROUPS, *of_w)))
    return x, w, x_scale, w_scale


def offsets(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("dtype", [FP8, INT8])
@pytest.mark.parametrize("block", BLOCKS)
def test_each_group_has_a_weight_and_scales_of_its_own(block: str, dtype: torch.dtype) -> None:
    x, w, x_scale, w_scale = operands(block, dtype)
    out = opmux.scaled_grouped_linear(x, w, offsets(*OFFSETS), x_scale, w_scale, out_dtype=torch.float32)
    rows = x.double() * scale_of_elements(x_scale, 11, K)
    weights = torch.stack([one.double() * scale_of_elements(s, N, K) for one, s in zip(w, w_scale, strict=True)])
    expected = torch.einsum("tk,tnk->tn", rows, weights[OF_ROWS])
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize("block", BLOCKS)
def test_padding_and_its_scales_are_not_read(block: str) -> None:
    x, w, x_scale, w_scale = operands(block, FP8)
    given = (w, offsets(*OFFSETS), x_scale, w_scale, offsets(2, 0, 1, 5))
    clean = opmux.scaled_grouped_linear(x, *given, out_dtype=torch.bfloat16)
    x.view(torch.uint8)[[2, 9, 10]] = 0x7F
    if len(x_scale) > 1:
        x_scale[[2, 9, 10]] = float("nan")
    rows = [0, 1, 3, 4, 5, 6, 7, 8]
    out = opmux.scaled_grouped_linear(x, *given, out_dtype=torch.bfloat16)
    assert torch.equal(out[rows], clean[rows])
    assert out[rows].isfinite().all()


@pytest.mark.parametrize("dtype", [FP8, INT8])
@pytest.mark.parametrize("block", BLOCKS)
def test_counted_rows_are_those_of_scaled_linear(block: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    (rows, blocks), of_w = BLOCKS[block]
    rows = min(rows, 4)
    x, w = codes(generator, dtype, GROUPS, 4, K), codes(generator, dtype, GROUPS, N, K)
    x_scale, w_scale = (torch.rand(GROUPS, *s, generator=generator) + 0.5 for s in ((rows, blocks), of_w))
    counts = (2, 0, 4, 1)
    out = opmux.scaled_masked_grouped_linear(
        x, w, offsets(*counts), x_scale, w_scale, expected_m=2, out_dtype=torch.bfloat16
    )
    assert out.shape == (GROUPS, 4, N)
    for group, count in enumerate(counts):
        whole = opmux.scaled_linear(x[group], w[group], x_scale[group], w_scale[group], out_dtype=torch.bfloat16)
        torch.testing.assert_close(out[group, :count], whole[:count])


def gradient_operands(dtype: torch.dtype, m: int = 300) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    blocks = -(-m // 128)
    dy, x = codes(generator, dtype, m, 5), codes(generator, dtype, m, 7)
    return dy, x, *(torch.rand(blocks, width, generator=generator) + 0.5 for width in (5, 7))


def real(codes: Tensor, scale: Tensor) -> Tensor:
    return codes.double() * scale.double().repeat_interleave(128, 0)[: len(codes)]


@pytest.mark.parametrize("dtype", [FP8, INT8])
@pytest.mark.parametrize("across", [False, True])
def test_gradients_of_codes_are_those_of_their_values(dtype: torch.dtype, across: bool) -> None:
    dy, x, dy_scale, x_scale = gradient_operands(dtype)
    given = [t.T.contiguous().T if across else t for t in (dy, x)]
    out = torch.ones(4, 5, 7)
    opmux.scaled_grouped_weight_grad(out, *given, offsets(0, 130, 130, 256, 299), dy_scale, x_scale)
    left, right = real(dy, dy_scale), real(x, x_scale)
    bounds = [(0, 130), (130, 130), (130, 256), (256, 299)]
    expected = torch.stack([1 + left[a:b].T @ right[a:b] for a, b in bounds])
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-1)


def test_rows_of_no_group_and_their_scales_add_nothing() -> None:
    dy, x, dy_scale, x_scale = gradient_operands(FP8, 512)
    groups = (offsets(0, 3, 260, 260, 300), offsets(2, 5, 0, 40))
    clean, found = torch.zeros(4, 5, 7), torch.zeros(4, 5, 7)
    opmux.scaled_grouped_weight_grad(clean, dy, x, groups[0], dy_scale, x_scale, groups[1])
    for codes_of, scale in ((dy, dy_scale), (x, x_scale)):
        codes_of.view(torch.uint8)[8:260] = 0x7F
        codes_of.view(torch.uint8)[300:] = 0x7F
        scale[[1, 3]] = float("nan")
    opmux.scaled_grouped_weight_grad(found, dy, x, groups[0], dy_scale, x_scale, groups[1])
    assert torch.equal(found, clean)
    assert found.isfinite().all()


def test_scales_of_rows_have_the_shape_of_their_blocks() -> None:
    dy, x, dy_scale, x_scale = gradient_operands(FP8)
    out, groups = torch.zeros(1, 5, 7), offsets(0, 300)
    with pytest.raises(InvalidArgument) as raised:
        opmux.scaled_grouped_weight_grad(out, dy, x, groups, dy_scale[:2], x_scale)
    first = str(raised.value).splitlines()[0]
    wanted = "scaled_grouped_weight_grad: `dy_scale` expected shape [m/128 n] = [3, 5], got shape [2, 5]; m = 300"
    assert first.startswith(wanted)
    with pytest.raises(InvalidArgument, match=r"scaled_grouped_weight_grad: `x_scale` expected"):
        opmux.scaled_grouped_weight_grad(out, dy, x, groups, dy_scale, x_scale.expand(3, 3, 7)[0][:, :1])


def test_gradients_of_codes_have_no_gradient() -> None:
    dy, x, dy_scale, x_scale = gradient_operands(FP8)
    with pytest.raises(InvalidArgument, match="requires no gradient"):
        opmux.scaled_grouped_weight_grad(
            torch.zeros(1, 5, 7, requires_grad=True), dy, x, offsets(0, 300), dy_scale, x_scale
        )
    with pytest.raises(GradientRefused, match="scaled_grouped_weight_grad"):
        opmux.scaled_grouped_weight_grad(
            torch.zeros(1, 5, 7), dy, x, offsets(0, 300), dy_scale.requires_grad_(), x_scale
        )


def test_scales_of_another_block_are_refused_with_the_shapes_that_are_expected() -> None:
    x, w, x_scale, w_scale = operands("1x128 with 128x128", FP8)
    with pytest.raises(InvalidArgument) as raised:
        opmux.scaled_grouped_linear(x, w, offsets(*OFFSETS), x_scale[:, :1], w_scale, out_dtype=torch.bfloat16)
    ragged = (
        "scaled_grouped_linear: `w_scale` expected last dims (130, 1), beside (11, 1) of `x_scale`, got shape "
        "[4, 2, 2]; "
        "the scales of x (11, 200) and of w (4, 130, 200) have the shapes (1, 1) and (4, 1, 1) for tensors, (11, 1) "
        "and (4, 130, 1) for tokens with channels, (11, 2) and (4, 2, 2) for blocks of 1x128 with 128x128, or "
        "(11, 2) and (4, 130, 2) for 1x128 with 1x128"
    )
    assert str(raised.value).splitlines()[0] == ragged
    x, x_scale = x[:4].expand(4, 4, K), x_scale[:4].expand(4, 4, 2)
    counts, options = offsets(1, 1, 1, 1), {"expected_m": 1, "out_dtype": torch.bfloat16}
    with pytest.raises(InvalidArgument) as raised:
        opmux.scaled_masked_grouped_linear(x, w, counts, x_scale, w_scale[:, :1], **options)
    masked = (
        "scaled_masked_grouped_linear: `w_scale` expected last dims (2, 2) or (130, 2), beside (4, 2) of `x_scale`, "
        "got shape [4, 1, 2]; "
        "the scales of x (4, 4, 200) and of w (4, 130, 200) have the shapes (4, 1, 1) and (4, 1, 1) for tensors, "
        "(4, 4, 1) and (4, 130, 1) for tokens with channels, (4, 4, 2) and (4, 2, 2) for blocks of 1x128 with 128x128, "
        "or (4, 4, 2) and (4, 130, 2) for 1x128 with 1x128"
    )
    assert str(raised.value).splitlines()[0] == masked


def test_bad_groups_and_counts_are_named() -> None:
    x, w, x_scale, w_scale = operands("token", FP8)
    with pytest.raises(InvalidArgument) as raised:
        opmux.scaled_grouped_linear(x, w, offsets(0, 3, 2, 4, 11), x_scale, w_scale, out_dtype=torch.bfloat16)
    assert str(raised.value).startswith("scaled_grouped_linear: `group_offsets` expected 3 or more at index 2, as at")
    x, x_scale = x[:4].expand(4, 4, K), x_scale[:4].expand(4, 4, 1)
    with pytest.raises(InvalidArgument) as raised:
        opmux.scaled_masked_grouped_linear(
            x, w, offsets(1, 5, 1, 1), x_scale, w_scale, expected_m=1, out_dtype=torch.bfloat16
        )
    assert str(raised.value).startswith(
        "scaled_masked_grouped_linear: `masked_m` expected a number from 0 to max_m = 4"
    )
