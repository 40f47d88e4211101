"""Calls past what 32 bits count, or past the grid, are refused with the reason before anything is launched."""

import pytest
import torch
from cubins import meta

import opmux
from opmux.plugin import PluginError, registered_ops, takers
from opmux_cutile.bounds import MOST_FLOATS, MOST_HALVES, WIDEST, ResultAtMost, StridesAtMost
from opmux_cutile.launching import recording

INT32, FP32, FP8 = torch.int32, torch.float32, torch.float8_e4m3fn
FAR = (1 << 33, 1024, 128, 1)
"""Strides of a cache whose pages are further apart than 32 bits count."""


def reason(op: str, *tensors: torch.Tensor | None, arch: str = "sm_90", **options: object) -> str | None:
    """Why the backend refuses a call; None where it takes it."""
    plan = opmux.explain(getattr(opmux, op), *tensors, arch=arch, backend="cutile", **options)
    (found,) = (candidate for candidate in plan.candidates if candidate.name == "cutile")
    return found.reason if found.status == "rejected" else None


def far(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """A cache without memory, with pages far apart."""
    return torch.empty_strided(shape, FAR, dtype=dtype, device="meta")


def ragged(tokens: int, heads: int, width: int) -> tuple[torch.Tensor, ...]:
    """A ragged batch of one sequence, with heads of 64 and values of a width."""
    starts = meta(2, dtype=INT32), meta(2, dtype=INT32)
    return meta(tokens, heads, 64), meta(tokens, 8, 64), meta(tokens, 8, width), *starts


def codes(rows: int, n: int) -> tuple[torch.Tensor, ...]:
    """A group of rows of codes, with scales of rows."""
    tensors = meta(rows, 16, dtype=FP8), meta(1, n, 16, dtype=FP8), meta(2, dtype=INT32)
    return *tensors, meta(rows, 1, dtype=FP32), meta(1, n, 1, dtype=FP32)


HALVES, FLOATS = (f"the result has more than {most} elements" for most in (MOST_HALVES, MOST_FLOATS))
VARLEN = {"max_seqlen_q": 1 << 18, "max_seqlen_k": 1 << 18}
BF16 = {"out_dtype": torch.bfloat16}
TOO_LARGE = (
    ("grouped_linear", (meta(200000, 4096), meta(8, 14336, 4096), meta(9, dtype=INT32)), {}, HALVES),
    ("grouped_linear", (meta(1 << 19, 1024), meta(8, 16384, 1024), meta(9, dtype=INT32)), {}, HALVES),
    ("masked_grouped_linear", (meta(8, 65536, 1024), meta(8, 8192, 1024), meta(8, dtype=INT32)),
     {"expected_m": 64}, HALVES),
    ("scaled_grouped_linear", codes(1 << 18, 4096), BF16, FLOATS),
    ("scaled_masked_grouped_linear",
     (meta(8, 65536, 16, dtype=FP8), meta(8, 8192, 16, dtype=FP8), meta(8, dtype=INT32),
      meta(8, 65536, 1, dtype=FP32), meta(8, 8192, 1, dtype=FP32)), {**BF16, "expected_m": 64}, FLOATS),
    ("attention_varlen", ragged(1 << 18, 32, 256), VARLEN, HALVES),
    ("attention_varlen_lse", ragged(1 << 18, 32, 256), VARLEN, HALVES),
    ("attention", (meta(1, 1 << 17, 64, 64), meta(1, 1 << 17, 8, 64), meta(1, 1 << 17, 8, 256), None), {}, HALVES),
    ("attention_lse", (meta(8, 1 << 14, 32, 64), meta(8, 64, 8, 64), meta(8, 64, 8, 256), None), {}, HALVES),
)  # fmt: skip
"""Calls whose results a kernel would write elsewhere, or the launch would not take."""


@pytest.mark.parametrize(("op", "tensors", "options", "why"), TOO_LARGE, ids=[call[0] for call in TOO_LARGE])
def test_results_that_32_bits_do_not_count_are_refused(op, tensors, options, why) -> None:
    assert reason(op, *tensors, **options) == why


def test_results_up_to_the_bound_are_taken() -> None:
    offsets = meta(9, dtype=INT32)
    assert reason("grouped_linear", meta(1 << 16, 64), meta(8, (1 << 14) - 8, 64), offsets) is None
    assert reason("grouped_linear", meta(1 << 16, 64), meta(8, 1 << 14, 64), offsets) == HALVES
    assert reason("scaled_grouped_linear", *codes(1 << 17, 4088), **BF16) is None
    assert reason("attention_varlen", *ragged(1 << 16, 32, 256), **VARLEN) is None


@pytest.mark.parametrize("op", ["silu", "gelu"])
def test_widths_past_the_grid_are_refused(op) -> None:
    options = {} if op == "silu" else {"approximate": "tanh"}
    width = 1 << 27
    why = f"n = {width} is more than {WIDEST}"
    wide = meta(2, width)
    assert reason(f"{op}_mul", wide, wide, **options) == why
    assert reason(f"{op}_and_mul", meta(2, 2 * width), **options) == why
    assert reason(f"{op}_mul_backward", wide, wide, wide, **options) == why
    assert reason(f"{op}_and_mul_backward", wide, meta(2, 2 * width), **options) == why
    assert reason(f"{op}_mul", meta(2, WIDEST), meta(2, WIDEST), **options) is None


@pytest.mark.parametrize("block", [(1, 128), (1, 32)])
def test_quantised_widths_past_the_grid_are_refused(block) -> None:
    options = {"dtype": FP8, "block": block}
    assert reason("quantize", meta(2, 1 << 27), **options) == (
        f"block = {block} is not (128, 128) or (-1, -1), and k = {1 << 27} is more than {WIDEST}"
    )
    assert reason("silu_and_mul_quantize", meta(2, 1 << 28), **options) == f"n = {1 << 27} is more than {WIDEST}"
    assert reason("quantize", meta(2, WIDEST), **options) is None
    assert reason("quantize", meta(2, 1 << 27), dtype=FP8, block=(128, 128)) is None


def test_pages_too_far_apart_are_refused() -> None:
    new, slots = meta(16, 8, 128), meta(16, dtype=torch.int64)
    cache, apart = meta(4, 16, 8, 128), far(4, 16, 8, 128)
    why = f"a stride of {{}} is more than {2**31 - 1} elements: {list(FAR)}"
    assert reason("write_kv_cache", new, new, cache, apart, slots) == why.format("v_cache")
    ints = meta(9, dtype=INT32), meta(8, dtype=INT32), meta(8, 4, dtype=INT32)
    options = {"max_seqlen_q": 1, "max_seqlen_k": 64}
    for op in ("paged_attention", "paged_attention_lse"):
        assert reason(op, meta(8, 32, 128), apart, cache, *ints, **options) == why.format("k_cache")
        assert (
            reason(op, meta(8, 32, 128), meta(1 << 22, 16, 8, 128), meta(1 << 22, 16, 8, 128), *ints, **options) is None
        )


def test_grids_past_their_bounds_are_refused() -> None:
    heads = meta(1, 64, 1 << 16, 8)
    assert reason("attention", heads, heads, heads, None) == "heads = 65536 is more than 65535"
    offsets, rows = meta(2, dtype=INT32), meta(16, 1 << 20)
    w = meta(1, 1 << 20, 8)
    assert reason("grouped_linear_backward", rows, meta(16, 8), w, offsets) == "n = 1048576 is more than 524288"
    assert reason("grouped_weight_grad", w.float(), rows, meta(16, 8), offsets) == "n = 1048576 is more than 524288"


def test_heads_too_far_apart_are_rotated_from_a_copy() -> None:
    q = torch.empty_strided((1, 2, 2, 64), (1 << 34, 64, 1 << 33, 1), dtype=torch.bfloat16, device="meta")
    tables = meta(8, 32, dtype=FP32), meta(8, 32, dtype=FP32)
    (taker,) = takers(opmux.apply_rope, q, q, *tables, None, arch="sm_90", backend="cutile")
    with recording() as launches:
        taker.run()
    assert launches
    assert all(abs(number) < 1 << 31 for _, _, given in launches for number in given if isinstance(number, int))


def test_what_is_no_argument_of_the_op_is_refused() -> None:
    signature = registered_ops()["grouped_linear"].op.signature
    with pytest.raises(PluginError, match="grouped_linear has no dim or option `rows`"):
        ResultAtMost(("rows", "n"), 1).features(signature)
    with pytest.raises(PluginError, match="grouped_linear has no tensor argument `cache`"):
        StridesAtMost("cache").features(signature)


@pytest.mark.parametrize("added", [False, True])
def test_gradients_of_long_rows_around_their_mean_are_of_one_dtype_of_16_bits(added) -> None:
    def of(width: int, dtype: torch.dtype, gain: torch.dtype) -> str | None:
        rows = meta(8, width, dtype=dtype)
        op, count = ("add_layer_norm_backward", 3) if added else ("layer_norm_backward", 2)
        return reason(op, *[rows] * count, meta(width, dtype=gain))

    assert of(8192, torch.bfloat16, torch.bfloat16) is None
    assert of(2048, FP32, FP32) is None
    assert of(2048, torch.bfloat16, FP32) is None
    assert of(8192, FP32, FP32) == "hidden = 8192 is more than 2048, and grad_y is float32, takes bfloat16, float16"
    found = of(4096, torch.bfloat16, FP32)
    assert found is not None
    assert found.startswith("hidden = 4096 is more than 2048, and dtypes differ: ")
