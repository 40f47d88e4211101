"""What the losses refuse beyond what data says."""

import pytest
import torch

import opmux
from opmux.plugin import registered_ops, takers


def tensors_of(op: str, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """The tensors of a call of one of the losses of a linear layer."""
    x, weight = torch.empty(64, 32, dtype=dtype, device="meta"), torch.empty(100, 32, dtype=dtype, device="meta")
    target = torch.empty(64, dtype=torch.int64, device="meta")
    grad_loss = (torch.empty(64, device="meta"),) if op.endswith("_backward") else ()
    return *grad_loss, x, weight, target


def triton_takes(op: str, dtype: torch.dtype, arch: str) -> bool:
    """Whether this backend takes such a call."""
    found = takers(registered_ops()[op], *tensors_of(op, dtype), arch=arch)
    return any(taker.implementation.backend == "triton" for taker in found)


@pytest.mark.parametrize("op", ["fused_linear_cross_entropy_gradients", "fused_linear_cross_entropy_backward"])
def test_no_gradients_of_float16_where_products_flush_subnormal_numbers(op: str) -> None:
    assert not triton_takes(op, torch.float16, "gfx90a")
    assert triton_takes(op, torch.bfloat16, "gfx90a")
    assert triton_takes(op, torch.float32, "gfx90a")
    assert triton_takes(op, torch.float16, "gfx942")
    assert triton_takes(op, torch.float16, "sm_90")


def test_the_refusal_says_why_and_what_to_use() -> None:
    op = "fused_linear_cross_entropy_gradients"
    shown = opmux.explain(registered_ops()[op], *tensors_of(op, torch.float16), arch="gfx90a")
    text = "x is float16, whose subnormal numbers gfx90a's matrix units take as 0: use bfloat16"
    assert text in " ".join(str(shown).split())


def test_the_loss_alone_is_taken_in_float16() -> None:
    assert triton_takes("fused_linear_cross_entropy", torch.float16, "gfx90a")


def test_the_backward_of_logits_leaves_float64_to_the_reference() -> None:
    logits, target = torch.empty(4, 8, device="meta"), torch.empty(4, dtype=torch.int64, device="meta")
    for dtype, taken in ((torch.float32, True), (torch.float64, False)):
        grad = torch.empty(4, dtype=dtype, device="meta")
        found = takers(registered_ops()["cross_entropy_backward"], grad, logits, target, grad, arch="sm_90")
        assert any(taker.implementation.backend == "triton" for taker in found) is taken
