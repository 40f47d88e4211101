"""What is launched to merge partial results."""

import torch
from planted_launches import made

from opmux_triton.attention.merge import targets
from opmux_triton.attention.merge.configs import MergeConfig
from opmux_triton.launch import recording

CONFIG = MergeConfig(rows=16, num_warps=4)


def lse(*shape: int) -> torch.Tensor:
    return made(*shape, dtype=torch.float32)


def test_a_batch_is_one_launch() -> None:
    out, sums = made(3, 40, 4, 64), lse(3, 4, 40)
    with recording("sm_90") as recorded:
        found = targets.merge_attention_states(out, sums, out, sums, config=CONFIG)
    (launch,) = recorded.launches
    assert launch.grid == (3 * 3 * 4,)
    assert [f.shape for f in found] == [out.shape, sums.shape]


def test_leading_dims_that_do_not_fold_are_taken_apart() -> None:
    out, sums = made(4, 6, 10, 40, 4, 64)[::2, ::2, ::2], lse(2, 3, 5, 4, 40)
    with recording("sm_90") as recorded:
        targets.merge_attention_states(out, sums, out, sums, config=CONFIG)
    assert [launch.grid for launch in recorded.launches] == [(3 * 4 * 15,)] * 2


def test_gradients_that_are_not_wanted_are_empty() -> None:
    out, sums = made(3, 40, 4, 64), lse(3, 4, 40)
    with recording("sm_90") as recorded:
        grads = targets.merge_attention_states_backward(
            out, sums, out, sums, out, sums, output_mask=(True, False, False, True), config=CONFIG
        )
    (launch,) = recorded.launches
    assert [g.numel() > 0 for g in grads] == [True, False, False, True]
    wants = [launch.meta[f"WANTS_{name}"] for name in ("OUT_A", "LSE_A", "OUT_B", "LSE_B")]
    assert wants == [True, False, False, True]


def test_nothing_is_launched_for_nothing() -> None:
    out, sums = made(0, 40, 4, 64), lse(0, 4, 40)
    with recording("sm_90") as recorded:
        targets.merge_attention_states(out, sums, out, sums, config=CONFIG)
        targets.merge_attention_states_backward(out, sums, out, sums, out, sums, output_mask=(True,) * 4, config=CONFIG)
    assert recorded.launches == []
