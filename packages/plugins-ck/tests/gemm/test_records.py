"""What the record takes, and why it refuses the rest."""

import pytest
import torch

import opmux
from opmux_ck.gemm.choice import BLOCK_SHAPES, CODES_SHAPES, SHAPES
from opmux_ck.gemm.configs import MOST_SIDE
from opmux_ck.gemm.implementations import MOST_K, MOST_N
from opmux_ck.gemm.targets import _addressable, _parts, near_scales
from opmux_ck.launching import MOST_BYTES


def explained(*tensors: torch.Tensor, arch: str = "gfx942", **options: torch.dtype) -> tuple[bool, str]:
    explanation = opmux.explain(opmux.linear, *tensors, arch=arch, **options)
    (candidate,) = (c for c in explanation.candidates if c.name == "ck")
    return candidate.status in ("chosen", "accepted"), candidate.reason


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def test_explain_shows_the_instance() -> None:
    accepted, reason = explained(meta(2048, 4096), meta(4096, 4096))
    assert accepted
    assert reason == (
        "priority 9; m 128, n 128, k 64, waves_m 2, waves_n 2, mfma 32, mfma_k 16, pipeline v3, store 8, pads_n False, "
        "pads_k False, split_k 1 (heuristic: no tuned record for gfx942); "
        "launches linear_bf16_bf16_b128x128x64_w2x2_x32x32x16_v3l3_s8"
    )


@pytest.mark.parametrize(
    ("x", "w", "reason"),
    [
        (meta(4, 64, dtype=torch.float32), meta(8, 64, dtype=torch.float32), "x is float32, takes bfloat16, float16"),
        (meta(4, 60), meta(8, 60), "k = 60 is not a multiple of 8"),
        (meta(4, 128)[:, ::2], meta(8, 64), "the last stride of x is not 1: strides [128, 2]"),
        (meta(4, 64), meta(8, 68)[:, :64], "w is not aligned to 16 bytes"),
        (meta(4, 64), meta((1 << 20) + 8, 64), "n = 1048584 is more than 1048576"),
    ],
)
def test_refusals(x, w, reason) -> None:
    assert explained(x, w) == (False, reason)


def test_the_result_has_the_dtype_of_the_operands() -> None:
    reason = "out_dtype is float32, takes bfloat16, float16"
    assert explained(meta(4, 64), meta(8, 64), out_dtype=torch.float32) == (False, reason)


def scaled(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None, **options) -> str:
    """Why the record for codes on gfx942 takes a call, or does not."""
    scales = meta(len(x), 1, dtype=torch.float32), meta(len(w), 1, dtype=torch.float32)
    options = {"out_dtype": torch.bfloat16, "arch": "gfx942", **options}
    explanation = opmux.explain(opmux.scaled_linear, x, w, *scales, bias, **options)
    return next(c.reason for c in explanation.candidates if c.name == "ck:channels_gfx942")


INT8, FNUZ, OCP = torch.int8, torch.float8_e4m3fnuz, torch.float8_e4m3fn


def test_explain_shows_the_instance_of_codes() -> None:
    assert scaled(meta(512, 4096, dtype=FNUZ), meta(4096, 4096, dtype=FNUZ)).startswith(
        "priority 9; m 64, n 64, k 128, waves_m 2, waves_n 2, mfma 16, mfma_k 32, pipeline v3, store 8, "
    )


@pytest.mark.parametrize(
    ("x", "w", "more", "reason"),
    [
        (meta(4, 64, dtype=OCP), meta(8, 64, dtype=OCP), {},
         "x is float8_e4m3fn, takes float8_e4m3fnuz, int8: convert it by opmux.convert_fp8"),
        (meta(4, 72, dtype=INT8), meta(8, 72, dtype=INT8), {}, "k = 72 is not a multiple of 16"),
        (meta(4, 64, dtype=INT8), meta(8, 64, dtype=INT8), {"bias": meta(8)}, "bias is not supported"),
        (meta(4, 64, dtype=INT8), meta(8, 64, dtype=INT8), {"out_dtype": torch.float32},
         "out_dtype is float32, takes bfloat16, float16"),
    ],
)  # fmt: skip
def test_refusals_of_codes(x, w, more, reason) -> None:
    assert scaled(x, w, **more) == reason


def by_blocks(x: torch.Tensor, w: torch.Tensor, x_scale: tuple[int, ...], w_scale: tuple[int, ...], **options) -> str:
    """Why the record for scales of blocks on gfx942 takes a call, or does not."""
    scales = meta(*x_scale, dtype=torch.float32), meta(*w_scale, dtype=torch.float32)
    options = {"out_dtype": torch.bfloat16, "arch": "gfx942", **options}
    explanation = opmux.explain(opmux.scaled_linear, x, w, *scales, options.pop("bias", None), **options)
    return next(c.reason for c in explanation.candidates if c.name == "ck:blocks_gfx942")


def test_explain_shows_the_instance_of_blocks() -> None:
    x, w = meta(512, 4096, dtype=FNUZ), meta(4096, 4096, dtype=FNUZ)
    assert by_blocks(x, w, (512, 32), (32, 32)).startswith(
        "priority 9; m 64, n 64, k 128, waves_m 2, waves_n 2, mfma 16, mfma_k 32, pipeline v3, store 8, "
    )


@pytest.mark.parametrize(
    ("dtype", "k", "x_scale", "w_scale", "options", "reason"),
    [
        (
            OCP,
            256,
            (4, 2),
            (2, 2),
            {},
            "x is float8_e4m3fn, takes float8_e4m3fnuz, int8: convert it by opmux.convert_fp8",
        ),
        (FNUZ, 264, (4, 3), (2, 3), {}, "k = 264 is not a multiple of 16"),
        (FNUZ, 256, (4, 1), (256, 1), {}, "x_scale is [4, 1], takes one scale per [1, 128] block of x"),
        (FNUZ, 256, (4, 2), (256, 2), {}, "w_scale is [256, 2], takes one scale per [128, 128] block of w"),
        (FNUZ, 256, (4, 2), (2, 2), {"bias": meta(256)}, "bias is not supported"),
    ],
)
def test_refusals_of_blocks(dtype, k, x_scale, w_scale, options, reason) -> None:
    assert by_blocks(meta(4, k, dtype=dtype), meta(256, k, dtype=dtype), x_scale, w_scale, **options) == reason


def test_scales_too_far_apart_are_copied() -> None:
    far = torch.empty_strided((512, 3), (1 << 22, 1), dtype=torch.float32, device="meta")
    assert near_scales(far).stride() == (3, 1)
    transposed = torch.empty(3, 512, device="meta").T
    assert near_scales(transposed) is transposed


def test_matrices_that_a_launch_cannot_address_are_cut_at_tiles() -> None:
    row_bytes, step = 2 * 16384, 128
    parts = list(_parts(128256, row_bytes, step))
    assert [part.start for part in parts[1:]] == [part.stop for part in parts[:-1]]
    assert (parts[0].start, parts[-1].stop, len(parts)) == (0, 128256, 2)
    assert all((part.stop - part.start) * row_bytes <= MOST_BYTES for part in parts)
    assert parts[0].stop % step == 0


def test_a_tile_of_the_largest_sizes_is_addressed_in_32_bits() -> None:
    most = max(m for m, *_ in (*SHAPES, *CODES_SHAPES, *BLOCK_SHAPES))
    assert most <= MOST_SIDE
    most = MOST_SIDE  # of a config that is written by hand
    assert most * MOST_N * 4 <= MOST_BYTES
    assert most * MOST_K * 2 <= MOST_BYTES


def test_rows_too_far_apart_for_a_tile_are_copied() -> None:
    far = torch.empty_strided((4, 64), (1 << 23, 1), dtype=torch.bfloat16, device="meta")
    assert _addressable(far, 128).stride() == (64, 1)
    assert _addressable(far, 64) is far
