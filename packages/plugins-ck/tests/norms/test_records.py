"""What the records take, and why they refuse the rest."""

import pytest
import torch

import opmux


def explained(*tensors: torch.Tensor, op: str = "rms_norm", arch: str = "gfx942", **options: float) -> tuple[bool, str]:
    explanation = opmux.explain(getattr(opmux, op), *tensors, arch=arch, **options)
    (candidate,) = (c for c in explanation.candidates if c.name == "ck")
    return candidate.status in ("chosen", "accepted"), candidate.reason


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def test_explain_shows_the_instance() -> None:
    accepted, reason = explained(meta(4096, 8192), meta(8192))
    assert accepted
    assert reason == (
        "priority 9; rows 1, threads 256, repeats 4, vector 8, pads True, two_passes False "
        "(heuristic: no tuned record for gfx942); "
        "launches rms_norm_bf16_bf16_b1x8192_t1x256_v8_pad"
    )


@pytest.mark.parametrize(
    ("x", "weight", "arch", "options", "reason"),
    [
        (meta(4, 64), meta(64), "gfx90a", {}, "archs: gfx942, gfx950, this is gfx90a"),
        (meta(4, 63), meta(63), "gfx942", {}, "hidden = 63 is not a multiple of 8"),
        (meta(4, 64), meta(64), "gfx942", {"weight_offset": 1.0}, "weight_offset = 1.0 is not 0.0"),
        (meta(4, 64, dtype=torch.float32), meta(64), "gfx942", {}, "x is float32, takes bfloat16, float16"),
        (meta(4, 64), meta(64, dtype=torch.float16), "gfx942", {},
         "dtypes differ: x bfloat16, weight float16, and weight is float16, takes float32"),
        (meta(4, 128)[:, ::2], meta(64), "gfx942", {}, "the last stride of x is not 1: strides [128, 2]"),
        (meta(4, 68)[:, :64], meta(64), "gfx942", {}, "x is not aligned to 16 bytes"),
    ],
)  # fmt: skip
def test_refusals(x, weight, arch, options, reason) -> None:
    assert explained(x, weight, arch=arch, **options) == (False, reason)


@pytest.mark.parametrize(
    ("op", "tensors", "reason"),
    [
        ("add_rms_norm", (meta(4, 64), meta(4, 64, dtype=torch.float32), meta(64)),
         "dtypes differ: x bfloat16, residual float32"),
        ("add_rms_norm", (meta(4, 16392), meta(4, 16392), meta(16392)), "hidden = 16392 is more than 16384"),
        ("add_rms_norm_", (meta(4, 128)[:, :64], meta(4, 64), meta(64)), "x is not contiguous"),
        ("layer_norm", (meta(4, 64), meta(64)), "bias is absent"),
        ("add_layer_norm", (meta(4, 64), meta(4, 64), meta(64)), "bias is absent"),
    ],
)  # fmt: skip
def test_refusals_of_the_other_norms(op, tensors, reason) -> None:
    accepted, said = explained(*tensors, op=op)
    assert (accepted, said.startswith(reason)) == (False, True), said


@pytest.mark.parametrize(
    ("arch", "options", "reason"),
    [
        ("gfx942", {"dtype": torch.float8_e4m3fnuz}, "priority 9; rows 4, threads 64"),
        ("gfx950", {"dtype": torch.float8_e4m3fn, "block": (1, -1)}, "priority 9; rows 4, threads 64"),
        ("gfx942", {"dtype": torch.int8, "block": (1, 32)}, "priority 9; rows 4, threads 64"),
        ("gfx942", {"dtype": torch.float8_e4m3fn}, "dtype is float8_e4m3fn, takes float8_e4m3fnuz, int8"),
        ("gfx942", {"dtype": torch.int8, "block": (128, 128)},
         "block = (128, 128) is not (1, 128) or (1, -1) or (1, 32)"),
        ("gfx942", {"dtype": torch.int8, "scale_major": "m"}, "scale_major = 'm' is not 'k'"),
        ("gfx942", {"dtype": torch.int8, "weight_offset": 1.0}, "weight_offset = 1.0 is not 0.0"),
    ],
)  # fmt: skip
def test_norms_that_are_quantised(arch, options, reason) -> None:
    explanation = opmux.explain(opmux.rms_norm_quantize, meta(4, 64), meta(64), arch=arch, **options)
    (found,) = (c.reason for c in explanation.candidates if c.name == f"ck:{arch}")
    assert found.startswith(reason), found
