"""What the records take, and why they refuse the rest."""

import pytest
import torch

import opmux


def explained(x: torch.Tensor, weight: torch.Tensor, arch: str = "gfx942") -> tuple[bool, str]:
    explanation = opmux.explain(opmux.rms_norm, x, weight, arch=arch)
    (candidate,) = (c for c in explanation.candidates if c.name == "asm")
    return candidate.status in ("chosen", "accepted"), candidate.reason


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_explain_shows_asm_behind_portable_kernels(arch: str) -> None:
    accepted, reason = explained(meta(4096, 8192), meta(8192), arch)
    assert accepted
    assert reason == f"priority 9; waves 4, chunks 4 (heuristic: no tuned record for {arch})"


@pytest.mark.parametrize(
    ("x", "weight", "arch", "reason"),
    [
        (meta(4, 64), meta(64), "gfx90a", "archs: gfx942, gfx950, this is gfx90a"),
        (meta(4, 64), meta(64), "sm_90", "archs: gfx942, gfx950, this is sm_90"),
        (meta(4, 63), meta(63), "gfx942", "hidden = 63 is not a multiple of 8"),
        (meta(4, 16392), meta(16392), "gfx942", "hidden = 16392 is more than 16384"),
        (meta(4, 64, dtype=torch.float64), meta(64), "gfx942", "x is float64, takes bfloat16, float16, float32"),
        (meta(4, 64), meta(64, dtype=torch.float16), "gfx942",
         "dtypes differ: x bfloat16, weight float16, and weight is float16, takes float32"),
        (meta(4, 128)[:, ::2], meta(64), "gfx942", "the last stride of x is not 1: strides [128, 2]"),
        (meta(4, 68)[:, :64], meta(64), "gfx942", "x is not aligned to 16 bytes"),
    ],
)  # fmt: skip
def test_refusals(x: torch.Tensor, weight: torch.Tensor, arch: str, reason: str) -> None:
    assert explained(x, weight, arch) == (False, reason)
