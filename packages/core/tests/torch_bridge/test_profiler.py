"""Profilers show the ops by name, and only what profilers see is recorded."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch.autograd import profiler
from torch_bridge.samples import ALL, sample

import opmux


def shown(call: Any) -> Counter[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    return Counter(event.name for event in profile.events() if event.name.startswith("opmux::"))


@pytest.mark.parametrize("name", ALL)
def test_every_op_is_shown(name: str) -> None:
    call = sample(name)
    sample(name)()  # the plan is made: what follows is a direct call
    assert shown(call)[f"opmux::{name}"] == 1


def test_a_step_shows_forward_and_backward() -> None:
    x = torch.randn(4, 8, requires_grad=True)
    found = shown(lambda: opmux.rms_norm(x, torch.ones(8)).sum().backward())
    assert found == {"opmux::rms_norm": 1, "opmux::rms_norm_backward": 1}


def test_a_registered_call_is_shown_once() -> None:
    assert shown(lambda: torch.ops.opmux.rms_norm(torch.randn(4, 8), torch.ones(8))) == {"opmux::rms_norm": 1}


def test_nothing_is_recorded_without_a_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def recording(name: str) -> None:
        raise AssertionError(name)

    monkeypatch.setattr(profiler, "record_function", recording)
    opmux.rms_norm(torch.randn(4, 8), torch.ones(8))
    opmux.rms_norm(torch.randn(4, 8, requires_grad=True), torch.ones(8))
