"""On an H100 or H200: the gradients of attention's Gluon kernels at every kind of head size, with and without masks."""

from typing import Any

import pytest
import torch

import opmux

pytestmark = pytest.mark.gpu


SIZES = (
    *((size, size, "hopper") for size in (64, 72, 80, 96, 104, 120, 128)),
    *((size, size, "hopper_wide") for size in (136, 160, 192, 200, 256)),
    (192, 128, "hopper_wide"),
)


@pytest.mark.parametrize("mask", [{}, {"causal": True}, {"window": (100, 20)}], ids=["full", "causal", "window"])
@pytest.mark.parametrize(("head_dim", "value_dim", "name"), SIZES)
def test_every_head_size_agrees_with_the_reference(
    head_dim: int, value_dim: int, name: str, mask: dict[str, Any]
) -> None:
    made = torch.Generator("cuda").manual_seed(head_dim)

    def draw(seq: int, heads: int, dim: int) -> torch.Tensor:
        return torch.randn(2, seq, heads, dim, device="cuda", generator=made).to(torch.bfloat16)

    q, k = draw(333, 6, head_dim), draw(461, 2, head_dim)
    v, grad = draw(461, 2, value_dim), draw(333, 6, value_dim)
    options: dict[str, Any] = {"scale": 2 / head_dim**0.5, **mask}
    wanted = (True, True, True, False)
    out, lse = opmux.attention_lse(q, k, v, **options)
    found = opmux.attention_backward(
        grad, q, k, v, out, lse, None, None, output_mask=wanted, **options, backend=f"triton:{name}"
    )
    exact = [t.double() for t in (q, k, v)]
    out, lse = opmux.attention_lse(*exact, **options, backend="reference")
    expected = opmux.attention_backward(
        grad.double(), *exact, out, lse, None, None, output_mask=wanted, **options, backend="reference"
    )
    for ours, reference in zip(found[:3], expected[:3], strict=True):
        assert (ours.double() - reference).abs().max() <= 0.01 * reference.abs().max()
