"""Attention on the CPU: what the library returns is what the op returns, in its layout, with its gradients."""

import pytest
import torch

import opmux


@pytest.mark.parametrize("causal", [False, True])
def test_lse_and_gradients_are_those_of_the_reference(causal):
    def made(heads):
        return torch.randn(2, 33, heads, 16, requires_grad=True)

    q, k, v = made(4), made(2), made(2)
    grads = {}
    for backend in ("vendor:cpu_flash", "reference"):
        out, lse = opmux.attention_lse(q, k, v, causal=causal, backend=backend)
        assert lse.shape == (2, 4, 33)
        assert out.is_contiguous()
        grads[backend] = (out, lse, *torch.autograd.grad((out * out.detach()).sum(), (q, k, v)))
    torch.testing.assert_close(*grads.values(), rtol=1e-4, atol=1e-5)


def test_a_gradient_of_the_lse_is_left_to_the_reference():
    q, k, v = (torch.randn(1, 8, 2, 16, requires_grad=True) for _ in range(3))
    _, lse = opmux.attention_lse(q, k, v)
    with opmux.trace() as traced:
        torch.autograd.grad(lse.sum(), (q, k))
    assert "reference" in str(traced)
