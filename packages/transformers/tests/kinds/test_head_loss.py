"""When a patched model's head computes logits, and when it hands over what a loss is computed from."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from kinds.losses import trained, waiting
from samples import CLOSE, ids, logits, model, pair
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import opmux_transformers
from opmux_transformers.kinds.head_loss import CALLS


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


def test_an_error_in_the_forward_leaves_nothing_behind() -> None:
    patched = model()
    opmux_transformers.patch(patched)
    patched.train()
    with pytest.raises(RuntimeError):
        patched(ids(), labels=ids(seq=5))
    assert CALLS.taken is None
    assert logits(patched.eval(), ids()).shape == (2, 12, 128)


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
