"""Attention in blocks: how large they are, and which are left out."""

import pytest
import torch
from ops.recorder import Recorder

from opmux.ops import _blockwise
from opmux.ops.attention import attention_backward, attention_lse


@pytest.mark.parametrize(
    ("options", "tiles"), [({}, 16), ({"causal": True}, 10), ({"causal": True, "window": (1024, -1)}, 7)]
)
def test_no_full_matrix_and_no_needless_block(options, tiles):
    """4096 x 4096 scores in tiles of 1024 x 1024, of which causal and window leave some out."""
    q, k, v = (torch.randn(1, 4096, 1, 4) for _ in range(3))
    with Recorder() as forward:
        out, lse = attention_lse.reference(q, k, v, **options)
    with Recorder() as backward:
        attention_backward.reference(out, q, k, v, out, lse, **options)
    assert max(forward.largest, backward.largest) <= 1024 * 1024 < 4096 * 4096
    assert (forward.products, backward.products) == (2 * tiles, 5 * tiles)


@pytest.mark.parametrize("batch_heads", [1, 7, 64, 256])
def test_a_block_shrinks_with_batch_and_heads(batch_heads):
    side = _blockwise.block_side(torch.empty(batch_heads, 1, 1, 1))
    assert side * side * batch_heads <= 1 << 20
    assert side >= 64
