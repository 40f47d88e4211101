"""The losses against torch's own formulation, in float64, and what is said of their edges."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opmux
from opmux.errors import InvalidArgument
from opmux.ops import fused_loss

REDUCTIONS = ("mean", "sum", "none")


def logits_and_target(tokens: int = 7, vocab: int = 33) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(tokens, vocab, generator=generator, dtype=torch.float64)
    target = torch.randint(vocab, (tokens,), generator=generator)
    target[1::3] = -100
    return logits, target


def naive(logits: Tensor, target: Tensor, reduction: str, smoothing: float, z_loss: float, softcap: float) -> Tensor:
    """By torch's cross entropy; what it has not is added by hand."""
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    losses = F.cross_entropy(logits, target, reduction="none", label_smoothing=smoothing)
    losses = losses + z_loss * torch.logsumexp(logits, -1).square() * (target != -100)
    return losses if reduction == "none" else losses.sum() / ((target != -100).sum() if reduction == "mean" else 1)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(
    ("smoothing", "z_loss", "softcap"), [(0, 0, 0), (0.1, 0, 0), (1, 0, 0), (0, 0.01, 0), (0, 0, 2), (0.3, 0.02, 5)]
)
def test_losses_and_gradients_are_those_of_torch(
    reduction: str, smoothing: float, z_loss: float, softcap: float
) -> None:
    logits, target = logits_and_target()
    options: dict[str, Any] = {"label_smoothing": smoothing, "z_loss": z_loss, "softcap": softcap}
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    loss = opmux.cross_entropy(ours, target, reduction=reduction, **options)
    wanted = naive(theirs, target, reduction, smoothing, z_loss, softcap)
    torch.testing.assert_close(loss, wanted)
    grad = torch.randn(wanted.shape, dtype=torch.float64)
    loss.backward(grad)
    wanted.backward(grad)
    torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("elements", [1, 70, 1 << 24], ids=["a token", "two tokens", "all"])
def test_chunks_change_nothing(reduction: str, elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One token, two tokens, all tokens at a time."""
    monkeypatch.setattr(fused_loss, "CHUNK_ELEMENTS", elements)
    _, target = logits_and_target()
    x = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(33, 5, dtype=torch.float64, requires_grad=True)
    loss = opmux.fused_linear_cross_entropy(x, weight, target, label_smoothing=0.1, z_loss=0.01, reduction=reduction)
    wanted = naive(x @ weight.T, target, reduction, 0.1, 0.01, 0)
    grad = torch.randn(wanted.shape, dtype=torch.float64)
    torch.testing.assert_close(loss, wanted)
    found = torch.autograd.grad(loss, (x, weight), grad)
    for mine, theirs in zip(found, torch.autograd.grad(wanted, (x, weight), grad), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_the_references_logits_are_never_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_loss, "CHUNK_ELEMENTS", 100)
    made: list[int] = []
    losses = fused_loss.TokenLoss.losses

    def seen(self: Any, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        made.append(logits.numel())
        return losses(self, logits, target)

    monkeypatch.setattr(fused_loss.TokenLoss, "losses", seen)
    opmux.fused_linear_cross_entropy_gradients(torch.randn(7, 5), torch.randn(33, 5), torch.arange(7))
    assert made == [99, 99, 33]


def test_a_frozen_weight_gets_no_gradient_computed() -> None:
    x, weight = torch.randn(4, 8, requires_grad=True), torch.randn(10, 8)
    with opmux.trace() as trace:
        opmux.fused_linear_cross_entropy(x, weight, torch.arange(4)).backward()
    assert x.grad is not None
    _, grad_x, grad_weight = opmux.fused_linear_cross_entropy_gradients(
        x.detach(), weight, torch.arange(4), output_mask=(True, True, False)
    )
    torch.testing.assert_close(x.grad, grad_x / 4)
    assert grad_weight.shape == (0,)
    assert {row.op for row in trace.rows} == {
        "fused_linear_cross_entropy_gradients", "fused_linear_cross_entropy_backward"
    }  # fmt: skip


def test_gradients_are_kept_under_torch_func_and_compile() -> None:
    x, weight, target = torch.randn(4, 8), torch.randn(10, 8), torch.tensor([1, 2, -100, 9])
    leaf = weight.clone().requires_grad_()
    opmux.fused_linear_cross_entropy(x, leaf, target).backward()

    def loss(w: Tensor) -> Tensor:
        return opmux.fused_linear_cross_entropy(x, w, target)

    torch.testing.assert_close(torch.func.grad(loss)(weight), leaf.grad)
    again = weight.clone().requires_grad_()
    torch.compile(loss, backend="aot_eager", fullgraph=True)(again).backward()
    torch.testing.assert_close(again.grad, leaf.grad)


@pytest.mark.parametrize("of", [lambda x, w, t, **o: opmux.cross_entropy(x @ w.T, t, **o),
                                opmux.fused_linear_cross_entropy], ids=["logits", "linear"])  # fmt: skip
def test_where_all_tokens_are_ignored(of: Any) -> None:
    x, weight = torch.randn(4, 8, requires_grad=True), torch.randn(10, 8, requires_grad=True)
    target = torch.full((4,), 3)
    loss = of(x, weight, target, ignore_index=3)
    loss.backward()
    assert loss.isnan()
    assert not x.grad.any()
    assert not weight.grad.any()
    assert of(x, weight, target, ignore_index=3, reduction="sum") == 0


def test_of_one_class_the_loss_is_zero() -> None:
    logits = torch.randn(3, 1, requires_grad=True)
    loss = opmux.cross_entropy(logits, torch.zeros(3, dtype=torch.int64))
    loss.backward()
    assert loss == 0
    assert not logits.grad.any()


def test_an_ignored_tokens_nan_stays_where_it_is() -> None:
    logits, target = torch.randn(3, 5), torch.tensor([1, -100, 4])
    logits[1] = math.nan
    leaf = logits.requires_grad_()
    loss, lse = opmux.cross_entropy_lse(leaf, target)
    loss.backward()
    assert loss.isfinite()
    assert lse[1] == 0
    assert leaf.grad.isfinite().all()
    assert not leaf.grad[1].any()


def test_a_masked_class_matters_with_smoothing_only() -> None:
    logits, target = torch.randn(2, 5), torch.tensor([0, 1])
    logits[:, 4] = -math.inf
    assert opmux.cross_entropy(logits, target).isfinite()
    assert opmux.cross_entropy(logits, target, label_smoothing=0.1) == math.inf


def test_the_lse_has_a_gradient() -> None:
    logits, target = logits_and_target()
    leaf = logits.requires_grad_()
    _, lse = opmux.cross_entropy_lse(leaf, target)
    lse.sum().backward()
    torch.testing.assert_close(leaf.grad, torch.softmax(logits, -1) * (target != -100)[:, None])


def test_a_loss_of_bfloat16_is_float32() -> None:
    logits, target = logits_and_target()
    assert opmux.cross_entropy(logits.bfloat16(), target).dtype == torch.float32
    assert opmux.cross_entropy(logits, target).dtype == torch.float64


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: opmux.cross_entropy(torch.randn(2, 5), torch.tensor([0, 5]), backend="reference"),
            "cross_entropy: `target` expected a class below vocab = 5, or ignore_index = -100, for token 1, got 5; "
            "check the tokenizer against the size of the vocabulary, or pass ignore_index=",
        ),
        (
            lambda: opmux.fused_linear_cross_entropy(
                torch.randn(2, 3), torch.randn(5, 3), torch.tensor([-1, 0]), backend="reference"
            ),
            "fused_linear_cross_entropy: `target` expected a class below vocab = 5, or ignore_index = -100, for token "
            "0, got -1; check the tokenizer against the size of the vocabulary, or pass ignore_index=",
        ),
        (
            lambda: opmux.cross_entropy(torch.randn(2, 5), torch.tensor([0, 1]), label_smoothing=1.5),
            "cross_entropy: `label_smoothing` expected 0 <= label_smoothing <= 1, got label_smoothing = 1.5; "
            "label_smoothing is the share of the uniform distribution, between 0 and 1",
        ),
        (
            lambda: opmux.cross_entropy(torch.randn(2, 5), torch.tensor([0, 1]), z_loss=-1.0),
            "cross_entropy: `z_loss` expected z_loss >= 0, got z_loss = -1.0; z_loss is the weight of a penalty, so "
            "it is 0 or more",
        ),
        (
            lambda: opmux.cross_entropy(torch.randn(2, 0), torch.tensor([0, 1])),
            "cross_entropy: `logits` expected vocab > 0, got vocab = 0; there is at least one class",
        ),
        (
            lambda: opmux.cross_entropy(torch.randn(2, 5), torch.tensor([0, 1]), reduction="average"),
            "cross_entropy: `reduction` expected 'mean' or 'sum' or 'none', got 'average' (str); the default is 'mean'",
        ),
    ],
)  # fmt: skip
def test_errors(call: Any, message: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        call()
    assert str(raised.value) == message


def test_the_debug_policy_finds_targets_out_of_range() -> None:
    target = torch.tensor([0, 7])
    with opmux.policy.override(check=True), pytest.raises(InvalidArgument, match="for token 1, got 7"):
        opmux.cross_entropy_lse(torch.randn(2, 5), target)


def test_the_gradient_of_a_float16_weight_is_divided_before_it_is_rounded() -> None:
    """The sum over these tokens is past float16's largest number; their mean is not."""
    x = torch.full((2048, 3), 64.0, dtype=torch.float16)
    weight = torch.zeros(5, 3, dtype=torch.float16, requires_grad=True)
    with opmux.trace() as trace:
        opmux.fused_linear_cross_entropy(x, weight, torch.zeros(2048, dtype=torch.int64)).backward()
    assert {row.op for row in trace.rows} >= {"fused_linear_cross_entropy_backward"}
    expected = torch.full((5, 3), 64 * 0.2)
    expected[0] -= 64
    torch.testing.assert_close(weight.grad, expected.half(), rtol=2e-3, atol=0)


@pytest.mark.parametrize("target", [torch.tensor([0, 5]), torch.tensor([0, 1], dtype=torch.int32)])
def test_an_error_names_the_op_that_was_called_also_where_a_gradient_is_due(target: torch.Tensor) -> None:
    weight = torch.randn(5, 3, requires_grad=True)
    calls = {
        "cross_entropy": lambda: opmux.cross_entropy(torch.randn(2, 5, requires_grad=True), target),
        "fused_linear_cross_entropy": lambda: opmux.fused_linear_cross_entropy(torch.randn(2, 3), weight, target),
    }
    for name, call in calls.items():
        with pytest.raises(InvalidArgument) as raised:
            call()
        assert str(raised.value).startswith(f"{name}: `target` expected ")


def test_gradients_ahead_of_a_loss_for_each_token_are_refused() -> None:
    x, weight, target = torch.randn(2, 3), torch.randn(5, 3), torch.tensor([0, 1])
    with pytest.raises(InvalidArgument, match="without a reduction there is no gradient of the weight yet"):
        opmux.fused_linear_cross_entropy_gradients(x, weight, target, reduction="none")


def test_second_order_gradients_are_refused() -> None:
    x, weight = torch.randn(2, 3, requires_grad=True), torch.randn(5, 3)
    (grad,) = torch.autograd.grad(
        opmux.fused_linear_cross_entropy(x, weight, torch.tensor([0, 1])), x, create_graph=True
    )
    with pytest.raises(opmux.errors.GradientRefused, match="second-order gradients are not supported"):
        grad.sum().backward()
