"""The loss of a patched model in training: the same number and gradients, without logits; undone by unpatch."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from samples import CLOSE, ids, logits, model, pair
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import opmux
import opmux_transformers
from opmux_transformers.kinds.head_loss import CALLS


def row(of: Any) -> Any:
    """The row of the loss in the report of a patched model."""
    return next(r for r in opmux_transformers.report(of).rows if r.kind == "loss")


def trained(of: Any, **more: Any) -> tuple[Any, list[Tensor]]:
    """What a step in training gives, and all gradients."""
    of.train()
    tokens = ids()
    labels = tokens.clone()
    labels[0, :4] = -100
    outputs = of(tokens, labels=labels, **more)
    outputs.loss.backward()
    return outputs, [p.grad for p in of.parameters() if p.grad is not None]


@pytest.mark.parametrize("name", ["llama", "gemma2", "granite", "gpt_oss"])
@pytest.mark.parametrize("items", [None, 7, torch.tensor(7)], ids=["mean", "int", "tensor"])
def test_the_loss_and_its_gradients_are_those_of_the_logits(name: str, items: Any) -> None:
    plain, patched = pair(name)
    opmux_transformers.patch(patched)
    assert (row(patched).status, row(patched).op) == ("replaced", "fused_linear_cross_entropy")
    with opmux.trace() as trace:
        ours, own = trained(patched, num_items_in_batch=items)
    assert {"fused_linear_cross_entropy_gradients"} <= {r.op for r in trace.rows}
    theirs, wanted = trained(plain, num_items_in_batch=items)
    torch.testing.assert_close(ours.loss, theirs.loss, **CLOSE)
    for mine, other in zip(own, wanted, strict=True):
        torch.testing.assert_close(mine, other, **CLOSE)
    assert "logits" not in ours


def test_the_head_makes_no_logits() -> None:
    """With a vocabulary that is large beside all else, no tensor is as large as the logits."""
    plain, patched = pair(vocab_size=5003)
    opmux_transformers.patch(patched)
    tokens = ids(seq=64)
    whole = tokens.numel() * 5003
    with Sizes() as seen:
        patched.train()
        patched(tokens, labels=tokens, use_cache=False).loss.backward()
    weight = 5003 * patched.config.hidden_size
    assert {size for size in seen.sizes if size >= whole} == set()
    assert weight < whole
    with Sizes() as seen:
        plain.train()
        plain(tokens, labels=tokens, use_cache=False).loss.backward()
    assert whole in seen.sizes, "those of the unpatched model are"


class Sizes(TorchDispatchMode):
    """Sees the number of elements of every tensor that a model makes; what an op makes inside is tested in the core."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for result in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(result, Tensor):
                self.sizes.add(result.numel())
        return made


def test_outside_of_training_there_are_logits() -> None:
    patched = model()
    opmux_transformers.patch(patched)
    tokens = ids()
    patched.eval()
    assert patched(tokens, labels=tokens).logits.shape == (2, 12, 128)
    patched.train()
    assert patched(tokens).logits.shape == (2, 12, 128)
    with torch.no_grad():
        assert "logits" in patched(tokens, labels=tokens)
    assert len(patched(tokens, labels=tokens, return_dict=False)) > 1
    kept = patched(tokens, labels=tokens[:, -3:], logits_to_keep=3)
    assert kept.logits.shape == (2, 3, 128)


def test_a_loss_function_that_is_set_later_gets_logits() -> None:
    patched = model()
    opmux_transformers.patch(patched)
    tokens, seen = ids(), []
    patched.train()
    patched.loss_function = lambda logits, labels, vocab_size, **_: seen.append(tuple(logits.shape)) or logits.sum()
    assert patched(tokens, labels=tokens, use_cache=False).logits.shape == (2, 12, 128)
    assert seen == [(2, 12, 128)]


def test_unpatch_brings_the_logits_back() -> None:
    plain, patched = pair()
    opmux_transformers.patch(patched)
    opmux_transformers.unpatch(patched)
    assert not any("forward" in vars(m) or "_loss_function" in vars(m) for m in patched.modules())
    patched.train()
    torch.testing.assert_close(patched(ids(), labels=ids()).logits, plain.train()(ids(), labels=ids()).logits)


def test_an_error_in_the_forward_leaves_nothing_behind() -> None:
    patched = model()
    opmux_transformers.patch(patched)
    patched.train()
    with pytest.raises(RuntimeError):
        patched(ids(), labels=ids(seq=5))
    assert CALLS.taken is None
    assert logits(patched.eval(), ids()).shape == (2, 12, 128)


def waiting(of: Any, before: Callable[[], Any]) -> Callable[[], None]:
    """Have a model do something between its layers and its head; returns what undoes that."""

    def hook(*_: Any) -> None:
        before()

    return of.model.norm.register_forward_hook(hook).remove


def test_threads_that_call_one_model_have_a_loss_each() -> None:
    """All threads are between layers and head at the same time, one of them in a call that wants logits."""
    patched = model()
    opmux_transformers.patch(patched)
    patched.train()
    prompts = [ids(seq) for seq in (6, 9, 12)]
    expected = [patched(tokens, labels=tokens).loss for tokens in prompts]
    all_there = threading.Barrier(len(prompts) + 1, timeout=120)
    stop = waiting(patched, all_there.wait)
    with ThreadPoolExecutor(len(prompts) + 1) as threads:
        losses = [threads.submit(patched, tokens, labels=tokens) for tokens in prompts]
        plain = threads.submit(patched, prompts[0])
        for loss, wanted in zip(losses, expected, strict=True):
            torch.testing.assert_close(loss.result().loss, wanted)
            assert "logits" not in loss.result()
        assert plain.result().logits.shape == (2, 6, 128)
    stop()


def test_a_thread_in_evaluation_gets_logits_while_another_trains() -> None:
    """Switched to evaluation while another thread is inside, it computes that thread's loss from logits."""
    patched = model()
    opmux_transformers.patch(patched)
    tokens = ids()
    expected = patched.eval()(tokens, labels=tokens)
    inside, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        if not inside.is_set():
            inside.set()
            assert go_on.wait(120)

    stop = waiting(patched, hold)
    with ThreadPoolExecutor(1) as threads:
        training = threads.submit(patched.train(), tokens, labels=tokens)
        assert inside.wait(120)
        own = patched.eval()(tokens).logits
        go_on.set()
        torch.testing.assert_close(training.result().loss, expected.loss)
    stop()
    torch.testing.assert_close(own, expected.logits)


def test_a_model_inside_another_has_its_own_loss() -> None:
    """The outer model calls the inner one, with labels and without, between its layers and its head."""
    outer, inner = model(), model("qwen2")
    expected = outer.train()(ids(), labels=ids()).loss
    theirs = inner.eval()(ids(), labels=ids())
    for each in (outer, inner):
        opmux_transformers.patch(each)
    seen: list[Any] = []
    stop = waiting(outer, lambda: seen.extend((inner(ids(), labels=ids()), inner(ids()))))
    loss = outer(ids(), labels=ids()).loss
    stop()
    torch.testing.assert_close(loss, expected, **CLOSE)
    torch.testing.assert_close(seen[0].loss, theirs.loss, **CLOSE)
    for got in seen:
        torch.testing.assert_close(got.logits, theirs.logits, **CLOSE)


def test_it_is_left_where_it_is_not_asked_for() -> None:
    patched = model()
    opmux_transformers.patch(patched, loss=False)
    assert (row(patched).status, row(patched).reason) == ("left", "not asked for: loss=False")
    assert "logits" in patched.train()(ids(), labels=ids())


def test_hooks_on_the_head_see_logits() -> None:
    """A library that gathers a sharded weight does so in hooks, for the head's own call only."""
    patched = model()
    opmux_transformers.patch(patched)
    seen: list[Any] = []
    patched.lm_head.register_forward_hook(lambda module, args, result: seen.append(result.shape))
    assert "logits" in patched.train()(ids(), labels=ids())
    assert seen == [(2, 12, 128)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_computes_in_its_dtype(dtype: torch.dtype) -> None:
    plain, patched = pair()
    opmux_transformers.patch(patched)
    with torch.autocast("cpu", dtype):
        ours, own = trained(patched)
        theirs, wanted = trained(plain)
    assert "logits" not in ours
    torch.testing.assert_close(ours.loss, theirs.loss, rtol=2e-2, atol=2e-2)
    assert [g.dtype for g in own] == [g.dtype for g in wanted]
    for mine, other in zip(own, wanted, strict=True):
        assert (mine - other).norm() <= 0.05 * other.norm()


def test_a_model_in_float16_trains_alike() -> None:
    plain, patched = (of.half() for of in pair())
    opmux_transformers.patch(patched)
    assert row(patched).status == "replaced"
    (ours, own), (theirs, wanted) = trained(patched), trained(plain)
    torch.testing.assert_close(ours.loss, theirs.loss, rtol=2e-3, atol=2e-3, check_dtype=False)
    for mine, other in zip(own, wanted, strict=True):
        assert (mine - other).float().norm() <= 0.02 * other.float().norm()


def test_a_compiled_model_computes_the_same() -> None:
    plain, patched = pair()
    opmux_transformers.patch(patched)
    compiled = torch.compile(patched, backend="aot_eager")
    tokens = ids()
    patched.train()
    loss = compiled(tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    wanted = plain.train()(tokens, labels=tokens, use_cache=False).loss
    torch.testing.assert_close(loss, wanted, **CLOSE)


def with_bias(of: Any) -> None:
    of.lm_head = nn.Linear(of.config.hidden_size, of.config.vocab_size)


def with_own_loss(of: Any) -> None:
    of.loss_function = lambda logits, labels, vocab_size, **_: logits.sum()


def with_a_penalty(of: Any) -> None:
    """A class whose forward shifts the logits of one token."""

    class Shifted(type(of)):  # type: ignore[misc]
        def forward(self, *args: Any, labels: Any = None, **kwargs: Any) -> Any:
            outputs = super().forward(*args, **kwargs)
            shifted = outputs.logits + torch.arange(outputs.logits.shape[-1])
            if labels is not None:
                outputs.loss = self.loss_function(shifted, labels, self.config.vocab_size)
            return outputs

    of.__class__ = Shifted


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("llama", with_bias, "its head is not a plain linear layer without a bias"),
        ("llama", with_own_loss, "it has been given a loss function of its own"),
        ("llama", with_a_penalty, "its logits or its loss are something else than those of its head"),
    ],
)
def test_what_is_left_has_a_reason(name: str, change: Any, reason: str) -> None:
    patched = model(name)
    change(patched)
    opmux_transformers.patch(patched)
    assert row(patched).status == "left"
    assert row(patched).reason.startswith(reason)
