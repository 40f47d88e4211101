"""What the records take, and why they refuse the rest."""

from collections.abc import Callable
from typing import Any

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


def refused(op: Any, *tensors: torch.Tensor | None, name: str = "asm", arch: str = "gfx942", **options: object) -> str:
    """Why a record refuses a call, or an empty string."""
    explanation = opmux.explain(op, *tensors, **options, arch=arch)
    (candidate,) = (c for c in explanation.candidates if c.name == name)
    return "" if candidate.status in ("chosen", "accepted") else candidate.reason


def heads(seq: int = 300, count: int = 4, dim: int = 128, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return meta(2, seq, count, dim, dtype=dtype)


def test_attention_is_accepted() -> None:
    for op in (opmux.attention, opmux.attention_lse):
        assert refused(op, heads(), heads(70, 2), heads(70, 2), causal=True, arch="gfx950") == ""


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_a_product_has_a_result_in_the_dtype_of_its_operands(arch: str) -> None:
    given = meta(64, 128), meta(64, 128)
    assert refused(opmux.linear, *given, arch=arch) == ""
    reason = "out_dtype is float32, takes bfloat16, float16"
    assert refused(opmux.linear, *given, arch=arch, out_dtype=torch.float32) == reason


@pytest.mark.parametrize(
    ("given", "options", "reason"),
    [
        ((heads(dim=64),) * 3, {}, "head_dim = 64 is not 128"),
        ((heads(), heads(), heads(dim=64)), {}, "value_dim = 64 is not 128"),
        ((heads(dtype=torch.float32),) * 3, {}, "q is float32, takes bfloat16, float16"),
        ((*(heads(),) * 3, meta(4)), {}, "sinks is not supported"),
        ((heads(),) * 3, {"window": (64, 0)}, "window = (64, 0) is not (-1, -1)"),
        ((heads(),) * 3, {"softcap": 30.0}, "softcap = 30.0 is more than 0"),
        ((heads().mT.contiguous().mT,) * 3, {}, "the last stride of q is not 1: strides [153600, 512, 1, 4]"),
    ],
)
def test_refusals_of_attention(given: tuple[torch.Tensor, ...], options: dict[str, object], reason: str) -> None:
    assert refused(opmux.attention, *given, **options) == reason


def decode(
    count: int = 8, kv_heads: int = 2, page_size: int = 16, dtype: torch.dtype = torch.bfloat16, *, new: int = 1,
    cache: torch.dtype | None = None, name: str = "asm",
) -> str:  # fmt: skip
    """Why a call of paged attention is refused."""
    pages = meta(9, page_size, kv_heads, 128, dtype=cache or dtype)
    index = meta(4, dtype=torch.int32), meta(3, dtype=torch.int32), meta(3, 2, dtype=torch.int32)
    return refused(
        opmux.paged_attention, meta(3 * new, count, 128, dtype=dtype), pages, pages, *index, max_seqlen_q=new,
        max_seqlen_k=32, name=name,
    )  # fmt: skip


def test_paged_attention_is_accepted() -> None:
    assert decode() == ""
    assert decode(dtype=torch.float16, cache=torch.float8_e4m3fnuz, name="asm:fnuz") == ""


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (lambda: decode(new=17), "max_seqlen_q = 17 is more than 16"),
        (lambda: decode(34), "heads = 34 is more than 16 for each of kv_heads = 2"),
        (lambda: decode(page_size=48), "page_size = 48 is not 16 or 32 or 64 or 128 or 256 or 512 or 1024"),
        (lambda: decode(cache=torch.int8), "dtypes differ: q bfloat16, k_cache int8"),
        (lambda: decode(cache=torch.float8_e4m3fn, name="asm:fnuz"),
         "k_cache is float8_e4m3fn, takes float8_e4m3fnuz: convert it by opmux.convert_fp8"),
    ],
)  # fmt: skip
def test_refusals_of_paged_attention(found: Callable[[], str], reason: str) -> None:
    assert found() == reason


def test_refusals_of_scales_of_blocks() -> None:
    x, w = (meta(256, 256, dtype=torch.float8_e4m3fnuz) for _ in range(2))
    x_scale, w_scale = meta(256, 2, dtype=torch.float32), meta(2, 2, dtype=torch.float32)
    options = {"out_dtype": torch.bfloat16, "name": "asm:fnuz_blocks"}
    assert refused(opmux.scaled_linear, x, w, x_scale, w_scale, **options) == ""
    channels = refused(opmux.scaled_linear, x, w, x_scale[:, :1], x_scale[:, :1], **options)
    assert channels == "x_scale is [256, 1], takes one scale per [1, 128] block of x"
    rows = refused(opmux.scaled_linear, x, w, x_scale, x_scale, **options)
    assert rows == "w_scale is [256, 2], takes one scale per [128, 128] block of w"


def test_a_cache_of_any_size() -> None:
    caches = [meta(1 << 17, 16, 8, 128) for _ in range(2)]
    given = meta(3, 8, 128), meta(3, 8, 128), *caches, meta(3, dtype=torch.int64)
    assert refused(opmux.write_kv_cache, *given) == ""
