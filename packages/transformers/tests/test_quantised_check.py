"""Quantised models beside their reference: products as inexact as a GPU's pass, and wrong ones do not."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from samples import model
from torch import Tensor

import opmux
from opmux.plugin import Implementation, Priority, hookimpl
from opmux.plugins.loading import temporary_plugin
from opmux_transformers import check
from opmux_transformers.configs import small_config
from opmux_transformers.prompted import begin_of_new, generated, logits_after
from opmux_transformers.quantised_check import compare_quantised
from opmux_transformers.routes import noted, routed, routes

PRODUCTS = ("scaled_linear", "scaled_grouped_linear", "scaled_masked_grouped_linear")
FAMILIES = ("llama", "mixtral", "deepseek_v3")
KEPT = 2.0**-13
"""What a sum of 14 bits may be off by, as a share of the sum of its terms' magnitudes."""


@contextmanager
def products(changed: Callable[[Callable[..., Tensor], tuple[Any, ...], Any], Tensor]) -> Iterator[None]:
    """Have a function compute the products of codes, from the reference, its tensors and its options."""

    def record(op: str) -> Implementation:
        reference = getattr(opmux, op).reference
        return Implementation(
            op=op, target=lambda *args, **options: changed(reference, args, options), priority=Priority.SPECIALISED
        )

    @hookimpl
    def opmux_implementations() -> list[Implementation]:
        return [record(op) for op in PRODUCTS]

    made = SimpleNamespace(OPMUX_API_VERSION=1, opmux_implementations=opmux_implementations)
    with temporary_plugin(made, "changed", "opmux-changed", "1"):
        yield


def in_fourteen_bits(reference: Callable[..., Tensor], args: tuple[Any, ...], options: Any) -> Tensor:
    """A product with errors as large as those of sums of 14 bits may be, in either direction."""
    x, w, *others = args
    plus = [t.float().abs().to(t.dtype) for t in (x, w)]
    # The bias, the only vector of floats, is not part of the sum.
    terms = [None if t is not None and t.dim() == 1 and t.is_floating_point() else t for t in others]
    out, magnitude = reference(*args, **options), reference(*plus, *terms, **options)
    return out + (2 * torch.rand_like(out) - 1) * KEPT * magnitude


def worst_of(name: str, codes: str) -> dict[str, float]:
    """Each comparison's error over its bound; for tokens, how many are wrong."""
    found, _ = compare_quantised(small_config(name), codes)
    return {c.what: c.error / c.bound if c.bound else c.error for c in found}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", FAMILIES)
def test_sums_of_fourteen_bits_pass(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the matrix units of Hopper add 8-bit floats."""
    monkeypatch.setattr(check, "SEED", seed)
    with products(in_fourteen_bits):
        torch.manual_seed(seed)
        found = worst_of(name, "fp8")
    assert 1e-3 < found["modules"] < 0.7
    assert 1e-3 < found["logits"] < 0.8
    assert found["tokens"] == 0


@pytest.mark.parametrize("name", ["phi", "opt"])
def test_tokens_that_end_a_text_are_no_best_ones(name: str) -> None:
    """`generate` may not choose them before it has given as many tokens as it is asked for."""
    config = small_config(name)
    plain = check.build(config, torch.float32)
    ids = check.prompts(plain.config)
    tokens = generated(plain, ids)
    with torch.no_grad():
        logits = logits_after(plain, ids, tokens)
    assert bool((logits[..., plain.generation_config.eos_token_id] == float("-inf")).all())
    assert torch.equal(logits.argmax(-1), tokens[:, begin_of_new(plain, ids) :])
    assert worst_of(name, "fp8")["tokens"] == 0


def test_a_token_that_may_not_be_chosen_is_not_what_others_are_behind() -> None:
    plain = check.build(small_config("phi"), torch.float32)
    with torch.no_grad():
        plain.lm_head.weight.zero_()
        plain.lm_head.bias.zero_()
        plain.lm_head.bias[plain.generation_config.eos_token_id] = 10.0
    patched = copy.deepcopy(plain)
    with torch.no_grad():
        patched.lm_head.bias[5] = 1e-5  # chooses another of many that are equal
    found = check._tokens(plain, patched, check.prompts(plain.config), torch.float32, 1e-5)
    assert (found.error, found.passed) == (0, True)
    assert found.detail == "tokens differ only where two logits are equal within rounding"
    with torch.no_grad():
        plain.lm_head.bias[7] = 1.0
    assert check._tokens(plain, patched, check.prompts(plain.config), torch.float32, 1e-5).error == 16


@pytest.mark.parametrize("name", ["llama4_text", "gemma3n_text"])
def test_models_that_write_to_the_results_of_their_modules_pass(name: str) -> None:
    found = worst_of(name, "fp8")
    assert found["modules"] < 1e-3
    assert found["tokens"] == 0


def neighbouring(reference: Callable[..., Tensor], args: tuple[Any, ...], options: Any) -> Tensor:
    """Each channel of the weight is multiplied by the scale of its neighbour."""
    at = next(i for i, t in enumerate(args) if i > 1 and t is not None and t.shape[-2:] == (args[1].shape[-2], 1))
    return reference(*args[:at], args[at].roll(1, -2), *args[at + 1 :], **options)


def without_the_last(reference: Callable[..., Tensor], args: tuple[Any, ...], options: Any) -> Tensor:
    """The last 4 columns are left out."""
    x = args[0].float()
    x[..., -4:] = 0
    return reference(x.to(args[0].dtype), *args[1:], **options)


@pytest.mark.parametrize("codes", ["fp8", "int8"])
@pytest.mark.parametrize("wrong", [neighbouring, without_the_last], ids=["neighbour", "columns"])
@pytest.mark.parametrize("name", FAMILIES)
def test_wrong_products_fail(name: str, wrong: Any, codes: str) -> None:
    with products(wrong):
        found, _ = compare_quantised(small_config(name), codes)
    assert {"modules", "logits"} <= {c.what for c in found if not c.passed}


def test_a_module_that_is_wrong_is_named() -> None:
    def wrong(reference: Callable[..., Tensor], args: tuple[Any, ...], options: Any) -> Tensor:
        return reference(*args, **options) * (1.1 if args[1].shape[-1] == 96 else 1.0)  # of the projections down

    with products(wrong):
        found, _ = compare_quantised(small_config("llama"), "int8")
    first = found[0]
    assert (first.what, first.passed) == ("modules", False)
    assert first.detail.endswith("mlp.down_proj")


def test_greedy_tokens_that_are_no_best_ones_are_counted() -> None:
    with products(lambda reference, args, options: -reference(*args, **options)):
        found, _ = compare_quantised(small_config("llama"), "fp8")
    last = found[-1]
    assert (last.what, last.passed) == ("tokens", False)
    assert last.detail.endswith(" of 16 differ, 16 compared")


def test_tokens_are_sent_where_those_of_another_model_went() -> None:
    plain, other = model("mixtral"), model("mixtral")
    for layer in other.model.layers:
        with torch.no_grad():
            layer.mlp.gate.weight.neg_()
    ids = check.prompts(plain.config)
    with noted(plain) as found, torch.no_grad():
        wanted = plain(ids).logits
    with noted(other) as own, routed(other, found), torch.no_grad():
        assert torch.equal(other(ids).logits, wanted)
    assert len(own) == len(found) == plain.config.num_hidden_layers
    assert not all(torch.equal(a, b) for a, b in zip(routes(other, ids), routes(plain, ids), strict=True))
    assert all(not m._forward_pre_hooks for m in (*plain.modules(), *other.modules()))
