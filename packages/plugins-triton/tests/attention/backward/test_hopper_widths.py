"""On an H100 or H200: the gradients of attention's Gluon kernels at every kind of head size, with and without masks."""

import pytest
import torch

import opmux

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [64, 72, 80, 96, 104, 120, 128])
def test_every_head_size_agrees_with_the_reference(head_dim: int, causal: bool) -> None:
    made = torch.Generator("cuda").manual_seed(head_dim)

    def draw(seq: int, heads: int) -> torch.Tensor:
        return torch.randn(2, seq, heads, head_dim, device="cuda", generator=made).to(torch.bfloat16)

    q, k, v, grad = draw(333, 6), draw(461, 2), draw(461, 2), draw(333, 6)
    options = {"causal": causal, "scale": 2 / head_dim**0.5}
    mask = (True, True, True, False)
    out, lse = opmux.attention_lse(q, k, v, **options)
    found = opmux.attention_backward(
        grad, q, k, v, out, lse, None, None, output_mask=mask, **options, backend="triton:hopper"
    )
    exact = [t.double() for t in (q, k, v)]
    out, lse = opmux.attention_lse(*exact, **options, backend="reference")
    expected = opmux.attention_backward(
        grad.double(), *exact, out, lse, None, None, output_mask=mask, **options, backend="reference"
    )
    for ours, reference in zip(found[:3], expected[:3], strict=True):
        assert (ours.double() - reference).abs().max() <= 0.01 * reference.abs().max()
