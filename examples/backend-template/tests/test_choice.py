"""opmux chooses the backend where its constraints hold, and says why not where they do not."""

import torch

import opmux


def test_it_is_chosen():
    plan = opmux.explain(opmux.rms_norm, torch.randn(4, 64), torch.randn(64))
    assert plan.chosen.name == "template"


def test_it_is_rejected_with_a_reason():
    plan = opmux.explain(opmux.rms_norm, torch.randn(4, 60), torch.randn(60))
    assert [c.reason for c in plan.candidates if c.name == "template"] == ["hidden = 60 is not a multiple of 8"]
