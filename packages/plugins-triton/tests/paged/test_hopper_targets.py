"""What is launched for paged attention on sm_90."""

from typing import Any

import torch
from planted_launches import made

from opmux.plugin import parse_arch
from opmux_triton.launch import Launch, recording
from opmux_triton.paged import hopper_targets
from opmux_triton.paged.configs import hopper_config

OPTIONS: dict[str, Any] = {
    "scale": None, "causal": True, "window": (-1, -1), "softcap": 0.0, "layout": "nhd", "max_seqlen_q": 512,
    "max_seqlen_k": 1024,
}  # fmt: skip


def launches(**changes: Any) -> list[Launch]:
    config = hopper_config(
        parse_arch("sm_90"), {"page_size": 16, "head_dim": 128, "value_dim": 128, "bucket(batch)": 2}
    )
    q, cache = made(1024, 8, 128), made(256, 16, 2, 128)
    offsets, lengths, table = (torch.empty(*n, dtype=torch.int32, device="meta") for n in ((4,), (3,), (3, 64)))
    with recording("sm_90") as recorded:
        hopper_targets.paged_attention(
            q, cache, cache, offsets, lengths, table, None, config=config, **(OPTIONS | changes)
        )
    return recorded.launches


def names(found: list[Launch]) -> list[str]:
    return [launch.kernel.__name__ for launch in found]


def test_prompts_go_to_the_gluon_kernel_and_the_rest_of_a_batch_to_decode() -> None:
    first, repair, decode = launches()[:3]
    assert names([first, repair, decode]) == ["prefill", "attend", "attend"]
    assert first.kernel.is_gluon()
    assert first.grid == (min(132, (1024 + 3 * 127) // 128 * 8),)
    assert first.meta["BOX"] == first.meta["PAGE"] == 16


def test_what_may_not_be_finite_is_computed_again_where_there_is_a_mask() -> None:
    assert names(launches(causal=False)).count("attend") == names(launches()).count("attend") - 1


def test_a_scale_that_is_not_positive_goes_to_the_portable_kernel() -> None:
    assert "prefill" not in names(launches(scale=-1.0))
