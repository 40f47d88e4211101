"""Random points: valid calls of real models' widths, the same for the same seed."""

import math
from collections import Counter

import pytest
import torch

from opmux.errors import InvalidArgument
from opmux.tuner.drawing import BANDS, DISTRIBUTIONS, MODELS, Largest, draw
from opmux.tuning.work import Work


@pytest.mark.parametrize("op", sorted(DISTRIBUTIONS))
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_points_are_valid_calls_that_are_not_too_large(op: str, device: str) -> None:
    points = draw([op], 12, seed=3, device=device)
    largest = Largest.of_device(device)
    assert len({point.key for point in points}) == 12
    for point in points:
        assert point.op == op
        point.check()
        work = Work(point.definition, point.dtypes, point.options)
        at = {**point.options, **point.dims}
        assert work.flops(at) <= largest.flops
        assert work.moved_bytes(at) <= largest.memory


def test_a_seed_decides_the_points_and_each_op_has_its_own_stream() -> None:
    alone = draw(["rms_norm"], 20, seed=1)
    assert draw(["rms_norm"], 20, seed=1) == alone
    assert draw(["rms_norm"], 20, seed=2) != alone
    beside = draw(["linear", "rms_norm"], 20, seed=1)
    assert [point.op for point in beside[:4]] == ["linear", "rms_norm", "linear", "rms_norm"]
    assert [point for point in beside if point.op == "rms_norm"] == alone


def test_tokens_of_products_spread_over_the_bands_and_their_octaves() -> None:
    tokens = [point.dims["tokens"] for point in draw(["linear"], 300, seed=5)]
    counts = Counter(next(band for band in BANDS if band[0] <= t <= band[1]) for t in tokens)
    assert set(counts) == set(BANDS)
    assert min(counts.values()) >= 60  # a third of 300 is expected; less than 60 has a probability below one in 10^5
    assert {int(math.log2(t)) for t in tokens} >= set(range(14))


def test_widths_are_those_of_models() -> None:
    hidden = {point.dims["hidden"] for point in draw(["rms_norm"], 200, seed=7)}
    assert hidden <= {model.hidden for model in MODELS}
    assert len(hidden) > len({model.hidden for model in MODELS}) / 2
    heads = {(p.dims["heads"], p.dims["kv_heads"], p.dims["head_dim"], p.dims["value_dim"])
             for p in draw(["attention"], 100, seed=7)}  # fmt: skip
    assert heads <= {(m.heads, m.kv_heads, m.head_dim, m.value_dim or m.head_dim) for m in MODELS}


@pytest.mark.parametrize(
    ("device", "dtype", "expected"),
    [
        ("cuda", None, torch.bfloat16),
        ("cuda:1", None, torch.bfloat16),
        ("cpu", None, torch.float32),
        ("cuda", torch.float16, torch.float16),
    ],
)
def test_the_dtype_is_that_of_the_device_or_of_the_caller(device: str, dtype: torch.dtype | None, expected) -> None:
    (point,) = draw(["linear"], 1, seed=0, device=device, dtype=dtype)
    assert {point.dtypes["x"], point.dtypes["w"]} == {expected}


@pytest.mark.parametrize("count", [0, -1])
def test_a_count_below_one_is_refused(count: int) -> None:
    with pytest.raises(InvalidArgument) as refused:
        draw(["linear"], count, seed=0)
    assert str(refused.value) == f"tune: `random` expected 1 point or more for each op, got {count}"


def test_an_op_without_a_distribution_is_refused() -> None:
    with pytest.raises(InvalidArgument) as refused:
        draw(["linear", "copy_pages"], 1, seed=0)
    assert str(refused.value) == (
        "tune: `random` expected ops with a distribution, got copy_pages; those are "
        f"{', '.join(sorted(DISTRIBUTIONS))}; give a file of shapes for the others"
    )


@pytest.mark.parametrize("op", ["paged_attention", "paged_attention_lse", "write_kv_cache"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_third_of_the_caches_hold_codes_with_their_scales(op: str, device: str) -> None:
    points = draw([op], 60, seed=9, device=device)
    coded = [point for point in points if point.dtypes["k_cache"] is torch.float8_e4m3fn]
    assert 8 <= len(coded) <= 34  # outside with a probability below one in 1000
    for point in points:
        scales = {name for name in point.dtypes if name.endswith("_scale")}
        assert scales == ({"k_scale", "v_scale"} if point in coded else set())
        assert point.dtypes["v_cache"] is point.dtypes["k_cache"]
    plain = [point for point in points if point not in coded]
    assert {point.dtypes["k_cache"] for point in plain} == {torch.float32 if device == "cpu" else torch.bfloat16}
