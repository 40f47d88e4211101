"""Backward ops that run the autograd of a reference."""

import pytest
import torch
from torch_bridge.samples import sample


@pytest.mark.parametrize("inference", [False, True])
def test_a_generated_backward_called_by_hand(inference: bool) -> None:
    call = sample("merge_attention_states_backward")
    expected = call()
    with torch.inference_mode(inference):
        given = call.with_tensors(torch.clone)()
    for grad, wanted in zip(given, expected, strict=True):
        assert wanted.abs().sum() > 0
        torch.testing.assert_close(grad, wanted, rtol=0, atol=0)


def test_a_generated_backward_gives_contiguous_gradients_and_empty_ones_where_unwanted() -> None:
    call = sample("merge_attention_states_backward")
    call = call.with_tensors(lambda t: t.mT.contiguous().mT)
    wanted, empty, *_ = call(output_mask=(True, False, True, True))
    assert wanted.is_contiguous()
    assert empty.shape == (0,)
