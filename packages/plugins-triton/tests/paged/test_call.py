"""A call of paged attention as kernels take it."""

import torch
from planted_launches import made

from opmux.plugin import parse_arch
from opmux_triton.paged.call import Call
from opmux_triton.paged.configs import halves_config

CONFIG = halves_config(parse_arch("sm_90"), {"page_size": 16, "head_dim": 64, "value_dim": 64, "bucket(batch)": 2})
OPTIONS = {"scale": None, "causal": True, "window": (-1, 5), "softcap": 0.0, "max_seqlen_q": 7, "max_seqlen_k": 900}


def call(sinks: torch.Tensor | None = None, **changes: object) -> Call:
    q, cache = made(10, 8, 64), made(32, 16, 2, 64)
    offsets, lengths, table = (torch.empty(*n, dtype=torch.int32, device="meta") for n in ((3,), (2,), (2, 64)))
    return Call.of((q, cache, cache, offsets, lengths, table, sinks), OPTIONS | changes, CONFIG, made(10, 8, 64), None)


def test_causal_is_a_right_side_of_zero() -> None:
    assert (call().left, call().right) == (-1, 0)
    assert call(causal=False).right == 5


def test_a_left_side_bounds_the_keys_that_a_tile_reaches() -> None:
    assert call().reach == 900
    assert call(window=(100, 0)).reach == 107
    assert call(window=(5000, 0)).reach == 900


def test_the_scale_is_that_of_the_head_unless_given() -> None:
    assert call().scale == 0.125
    assert call(scale=2.0).scale == 2.0


def test_absent_sinks_have_a_stride_of_zero() -> None:
    assert call().sinks_stride == 0
    assert call(made(8)).sinks_stride == 1
