"""Which models have a loss that may be replaced, and the reasons of the others."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kinds.losses import row
from samples import deep_looks, model
from torch import nn

import opmux_transformers
from opmux_transformers.kinds.head_loss import Head
from opmux_transformers.kinds.loss_check import _candidates, judge_loss


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


@pytest.mark.parametrize(
    ("config", "heads"),
    [
        ({}, [Head("lm_head")]),
        ({"final_logit_softcapping": 30.0}, [Head("lm_head", softcap=30.0), Head("lm_head")]),
        ({"logits_scaling": 8}, [Head("lm_head", 0.125), Head("lm_head")]),
        ({"logit_scale": 0.0625}, [Head("lm_head", 0.0625), Head("lm_head")]),
        ({"final_logit_softcapping": None, "logits_scaling": 0, "logit_scale": "1"}, [Head("lm_head")]),
    ],
    ids=["plain", "Gemma 2", "Granite", "Cohere", "no numbers"],
)
def test_what_a_configuration_suggests_is_tried_first(config: dict[str, Any], heads: list[Head]) -> None:
    assert _candidates(SimpleNamespace(**config), "lm_head") == heads


@pytest.mark.parametrize("name", ["llama", "gemma2", "granite"])
def test_a_judgement_finds_the_factors_and_leaves_the_model_as_it_was(name: str) -> None:
    of = model(name)
    before = deep_looks(of)
    found = judge_loss(of, of.lm_head, "lm_head")
    config = of.config
    expected = Head("lm_head", 1 / getattr(config, "logits_scaling", 1), getattr(config, "final_logit_softcapping", 0))
    assert found == expected
    assert deep_looks(of) == before
