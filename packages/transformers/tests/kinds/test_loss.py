"""The loss of a patched model in training: the same number and gradients, without logits; undone by unpatch."""

from typing import Any

import pytest
import torch
from kinds.losses import row, trained
from samples import CLOSE, ids, model, pair

import opmux
import opmux_transformers


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


def test_unpatch_brings_the_logits_back() -> None:
    plain, patched = pair()
    opmux_transformers.patch(patched)
    opmux_transformers.unpatch(patched)
    assert not any("forward" in vars(m) or "_loss_function" in vars(m) for m in patched.modules())
    patched.train()
    torch.testing.assert_close(patched(ids(), labels=ids()).logits, plain.train()(ids(), labels=ids()).logits)


def test_it_is_left_where_it_is_not_asked_for() -> None:
    patched = model()
    opmux_transformers.patch(patched, loss=False)
    assert (row(patched).status, row(patched).reason) == ("left", "not asked for: loss=False")
    assert "logits" in patched.train()(ids(), labels=ids())


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
