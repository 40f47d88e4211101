"""Run by `loss/test_targets` under TRITON_INTERPRET=1: what the interpreter's conformance cases do not reach."""

import sys
from typing import Any

import torch
from interpreted_results import same, scattered

import opmux
from opmux_triton.loss import fused_targets, targets
from opmux_triton.loss.configs import FusedConfig, ProductConfig, RowsConfig

torch.manual_seed(0)

OPTIONS: dict[str, Any] = {"ignore_index": -100, "label_smoothing": 0.1, "z_loss": 0.01, "softcap": 3.0}
ROWS = RowsConfig(block=16, num_warps=1)
PRODUCT = ProductConfig(num_warps=1, num_stages=1, block_m=16, block_n=16, block_k=16)
FUSED = FusedConfig(parts=3, least=128, mebibytes=1, rows=ROWS, product=PRODUCT)


def check_logits() -> None:
    """Several blocks of a row, in unfoldable strides."""
    logits = 3 * scattered(2, 3, 2, 40)
    target = torch.randint(40, (2, 3, 2))
    target[1, 0] = -100
    grad, grad_lse = torch.randn(2, 3, 2), torch.randn(2, 3, 2)
    for reduction in ("mean", "sum", "none"):
        o = {**OPTIONS, "reduction": reduction}
        loss, lse = targets.cross_entropy_lse(logits, target, **o, config=ROWS)
        same((loss, lse), opmux.cross_entropy_lse.reference(logits, target, **o), f"cross_entropy_lse {reduction}")
        given = (grad, logits, target, lse, grad_lse)
        found = targets.cross_entropy_backward(*given, **o, output_mask=(True,), config=ROWS)
        same(found, opmux.cross_entropy_backward.reference(*given, **o), f"cross_entropy_backward {reduction}")


def check_wide_gradients() -> None:
    """Gradients of the loss in float64, beside rows in float32."""
    grad, target = torch.randn(6, dtype=torch.float64), torch.randint(40, (6,))
    target[1] = -100
    for reduction in ("mean", "none"):
        o = {**OPTIONS, "reduction": reduction, "output_mask": (True, True)}
        given = (grad, torch.randn(6, 24), torch.randn(40, 24), target, None, None)
        found = fused_targets.fused_linear_cross_entropy_backward(*given, **o, config=FUSED)
        same(found, opmux.fused_linear_cross_entropy_backward.reference(*given, **o), f"wide gradients, {reduction}")


def check_chunks() -> None:
    """More chunks than one, the last of them shorter, with products whose tiles end inside."""
    assert FUSED.tokens(300, 40, 4) == 128
    x, weight = scattered(300, 24), scattered(40, 24)
    target = torch.randint(40, (300,))
    target[::5] = -100
    for mask in ((True, True, True), (True, False, True), (True, True, False)):
        o = {**OPTIONS, "reduction": "mean", "output_mask": mask}
        found = fused_targets.fused_linear_cross_entropy_gradients(x, weight, target, **o, config=FUSED)
        wanted = opmux.fused_linear_cross_entropy_gradients.reference(x, weight, target, **o)
        same(found, wanted, f"fused_linear_cross_entropy_gradients {mask}")
    given = (torch.randn(300), x, weight, target, None, None)
    o = {**OPTIONS, "reduction": "none", "output_mask": (True, True)}
    found = fused_targets.fused_linear_cross_entropy_backward(*given, **o, config=FUSED)
    same(found, opmux.fused_linear_cross_entropy_backward.reference(*given, **o), "fused backward")


def check_rows_that_are_not_aligned() -> None:
    """Classes that are no multiple of eight: the weight is copied with rows behind it, which reach no result."""
    x, weight = scattered(300, 24).half(), scattered(41, 24).half()
    target = torch.randint(41, (300,))
    target[::5] = -100
    o = {**OPTIONS, "softcap": 0.0, "reduction": "mean", "output_mask": (True, True, True)}
    found = fused_targets.fused_linear_cross_entropy_gradients(x, weight, target, **o, config=FUSED)
    wanted = opmux.fused_linear_cross_entropy_gradients.reference(x, weight, target, **o)
    for mine, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, right, rtol=2e-2, atol=2e-2)


def check_small_gradients_in_float16() -> None:
    """The mean over so many tokens that the gradient of a logit, divided by them, is below the least float16."""
    x, weight = torch.full((300, 24), 8.0, dtype=torch.float16), torch.zeros(40, 24, dtype=torch.float16)
    target = torch.zeros(300, dtype=torch.int64)
    o = {**OPTIONS, "label_smoothing": 0.0, "reduction": "mean", "output_mask": (False, True)}
    given = (torch.full((300,), 3e-5), x, weight, target, None, None)
    found = fused_targets.fused_linear_cross_entropy_backward(*given, **o, config=FUSED)[1]
    wanted = opmux.fused_linear_cross_entropy_backward.reference(*given, **o)[1]
    assert found.dtype == torch.float16
    assert bool((wanted != 0).all())
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=6e-8)


def check_targets_out_of_range() -> None:
    """Nothing is read outside of the logits, which the interpreter's guard would find; other tokens are right."""
    logits, target = torch.randn(3, 40), torch.tensor([1, 10**12, -5])
    o = {**OPTIONS, "reduction": "none"}
    found = targets.cross_entropy(logits, target, **o, config=ROWS)
    same(found[:1], opmux.cross_entropy.reference(logits[:1], target[:1], **o), "out of range")


check_logits()
check_wide_gradients()
check_chunks()
check_rows_that_are_not_aligned()
check_small_gradients_in_float16()
check_targets_out_of_range()
sys.stdout.write("all equal\n")
