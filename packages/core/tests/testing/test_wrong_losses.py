"""Losses that are wrong in one way each must fail the kit, for the right reason; see `test_wrong_kernels`."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import opmux
from opmux.ops import fused_loss
from opmux.plugin import Dtype

Hold = Callable[..., dict[str, Any]]


def assert_fails(report: dict[str, Any], *checks: str) -> None:
    found = {f["check"] for f in report["failures"]}
    assert set(checks) <= found, f"{set(checks) - found} did not fail, {found} did"


def test_a_mean_over_ignored_tokens_too(hold: Hold) -> None:
    def cross_entropy(logits: Tensor, target: Tensor, *, reduction: str, **options: Any) -> Tensor:
        losses = opmux.cross_entropy.reference(logits, target, reduction="none", **options)
        return {"none": losses, "sum": losses.sum(), "mean": losses.mean()}[reduction]

    assert_fails(hold("cross_entropy", cross_entropy), "element bound")


def test_smoothing_without_the_target(hold: Hold) -> None:
    """The uniform share goes to the other classes only."""

    def cross_entropy(logits: Tensor, target: Tensor, *, label_smoothing: float, **options: Any) -> Tensor:
        vocab = logits.shape[-1]
        share = label_smoothing * (vocab / (vocab - 1) if vocab > 1 else 1.0)
        return opmux.cross_entropy.reference(logits, target, label_smoothing=min(share, 1.0), **options)

    assert_fails(hold("cross_entropy", cross_entropy), "element bound")


def test_a_last_block_of_classes_dropped(hold: Hold) -> None:
    def cross_entropy(logits: Tensor, target: Tensor, **options: Any) -> Tensor:
        whole = logits.shape[-1] // 128 * 128
        cut = logits.clone()
        if whole:
            cut[..., whole:] = cut[..., whole:].where(torch.arange(whole, logits.shape[-1]) == target[..., None], -1e4)
        return opmux.cross_entropy.reference(cut, target, **options)

    assert_fails(hold("cross_entropy", cross_entropy), "element bound")


def test_a_sum_of_exponentials_without_the_maximum(hold: Hold) -> None:
    def cross_entropy_lse(logits: Tensor, target: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        loss, lse = opmux.cross_entropy_lse.reference(logits, target, **options)
        wide = logits.to(lse.dtype)
        capped = options["softcap"] * torch.tanh(wide / options["softcap"]) if options["softcap"] else wide
        return loss, torch.where(target == options["ignore_index"], 0.0, capped.exp().sum(-1).log()).contiguous()

    report = hold("cross_entropy_lse", cross_entropy_lse)
    assert_fails(report, "NaN and Inf")
    assert {f["case"].rpartition("=")[2] for f in report["failures"]} <= {"magnitude", "inf", "-inf"}


def test_ignored_logits_that_are_read(hold: Hold) -> None:
    """A factor of 0 does not undo a NaN."""

    def cross_entropy(logits: Tensor, target: Tensor, **options: Any) -> Tensor:
        touched = (0.0 * logits.detach().to(torch.float32)).nan_to_num(math.nan, 0.0, 0.0).sum()
        return opmux.cross_entropy.reference(logits, target, **options) + touched

    report = hold("cross_entropy", cross_entropy)
    assert_fails(report, "NaN and Inf")
    assert any(f["case"].startswith("bf16") and f["case"].endswith("=nan") for f in report["failures"])


def test_the_loss_rounded_to_16_bits(hold: Hold) -> None:
    def cross_entropy(logits: Tensor, target: Tensor, **options: Any) -> Tensor:
        loss = opmux.cross_entropy.reference(logits, target, **options)
        return loss.to(logits.dtype).to(loss.dtype)

    report = hold("cross_entropy", cross_entropy, when=(Dtype("logits", "bfloat16"),))
    assert_fails(report, "element bound")


def test_a_gradient_that_is_not_divided(hold: Hold) -> None:
    """Right for a sum, and taken for a mean."""

    def cross_entropy_backward(*tensors: Tensor, reduction: str, **options: Any) -> Tensor:
        return opmux.cross_entropy_backward.reference(*tensors, reduction="sum", **options)

    assert_fails(hold("cross_entropy_backward", cross_entropy_backward), "element bound")


def test_a_gradient_without_the_cap(hold: Hold) -> None:
    """The derivative of the capped logits is left out."""

    def cross_entropy_backward(grad: Tensor, logits: Tensor, *rest: Any, softcap: float, **options: Any) -> Tensor:
        if softcap:
            logits = (softcap * torch.tanh(logits.float() / softcap)).to(logits.dtype)
        return opmux.cross_entropy_backward.reference(grad, logits, *rest, softcap=0.0, **options)

    assert_fails(hold("cross_entropy_backward", cross_entropy_backward), "element bound")


def test_a_weight_gradient_summed_in_16_bits(hold: Hold) -> None:
    """Chunk by chunk, rounded each time."""

    def gradients(x: Tensor, weight: Tensor, target: Tensor, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
        reference = opmux.fused_linear_cross_entropy_gradients.reference
        loss, grad_x, grad_weight = reference(x, weight, target, **options)
        if grad_weight.numel() and target.numel():
            grad_weight = torch.zeros_like(grad_weight)
            rows, classes = x.reshape(-1, x.shape[-1]), target.reshape(-1)
            for token in range(len(classes)):
                one = {**options, "output_mask": (False, False, True)}
                grad_weight += reference(rows[token : token + 1], weight, classes[token : token + 1], **one)[2]
        return loss, grad_x, grad_weight

    report = hold("fused_linear_cross_entropy_gradients", gradients, when=(Dtype("x", "bfloat16"),))
    assert_fails(report, "global bound")


def test_a_chunk_that_is_left_out(hold: Hold) -> None:
    """The last token's share is missing in the gradient of the weight."""

    def gradients(x: Tensor, weight: Tensor, target: Tensor, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
        loss, grad_x, grad_weight = opmux.fused_linear_cross_entropy_gradients.reference(x, weight, target, **options)
        if grad_weight.numel() and target.numel() > 1:
            token = fused_loss.TokenLoss(
                *(options[n] for n in ("ignore_index", "label_smoothing", "z_loss", "softcap"))
            )
            last = fused_loss._walk(
                token, x.reshape(-1, x.shape[-1])[-1:], weight, target.reshape(-1)[-1:], torch.ones(1).to(loss.dtype),
                (False, True),
            )[2]  # fmt: skip
            grad_weight = (grad_weight.float() - last.float()).to(weight.dtype)
        return loss, grad_x, grad_weight

    assert_fails(hold("fused_linear_cross_entropy_gradients", gradients), "element bound", "global bound")


def test_a_backward_that_forgets_the_incoming_gradient(hold: Hold) -> None:
    def backward(grad_loss: Tensor, *tensors: Any, **options: Any) -> tuple[Tensor, Tensor]:
        return opmux.fused_linear_cross_entropy_backward.reference(torch.ones_like(grad_loss), *tensors, **options)

    assert_fails(hold("fused_linear_cross_entropy_backward", backward), "element bound")
