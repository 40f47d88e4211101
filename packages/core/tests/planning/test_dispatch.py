"""The first call of a key, and bind: what is planned, when, and from which thread."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from backends import backends, implementation
from planted import WANTED, W, X, ones, raising, returning

import opmux
from opmux.errors import CaptureRefused, InvalidArgument
from opmux.plugin import Exact
from opmux.running import modes


def test_meta_tensors_need_no_target():
    with backends(a=implementation(raising(AssertionError("launched")))):
        result = opmux.rms_norm(X.to("meta"), W.to("meta"))
    assert (result.device.type, result.shape, result.dtype) == ("meta", X.shape, X.dtype)


def test_bind_returns_the_planned_target():
    calls = []

    def target(x, weight, *, eps, weight_offset):
        calls.append(eps)
        return torch.ones_like(x)

    with backends(a=implementation(target)):
        bound = opmux.rms_norm.bind(X, W, eps=0.5)
        assert calls == []
        bound(X, W)
        bound(torch.randn(9, 8), W)
        forced = opmux.rms_norm.bind(X, W, backend="reference")
    assert calls == [0.5, 0.5]
    assert torch.equal(forced(X, W), WANTED)
    with pytest.raises(InvalidArgument, match="`weight` expected shape"):
        opmux.rms_norm.bind(X, torch.randn(7))
    layer_norm = opmux.layer_norm.bind(X, W)
    assert torch.equal(layer_norm(X, W), opmux.layer_norm.reference(X, W))
    with_bias = opmux.layer_norm.bind(X, W, W)
    assert torch.equal(with_bias(X, W, W), opmux.layer_norm.reference(X, W, W))


def test_nothing_is_planned_while_capturing(monkeypatch):
    with backends(a=implementation(ones, capturable=True)):
        monkeypatch.setattr(modes, "capturing", lambda: True)
        with pytest.raises(CaptureRefused) as caught:
            opmux.rms_norm(X, W)
        assert str(caught.value) == (
            "rms_norm: no plan is made during graph capture, and this call has none yet\n"
            "  call:      x float32[4, 8], weight float32[8]\n"
            "  try:       run the call once before the capture"
        )
        monkeypatch.setattr(modes, "capturing", lambda: False)
        opmux.rms_norm(X, W)
        monkeypatch.setattr(modes, "capturing", lambda: True)
        assert opmux.rms_norm(X, W).sum() == 32, "a planned, capturable target runs"


def test_changes_of_policy_while_other_threads_call_lose_nothing():
    """Every call returns what one of the backends returns, and the policy in force at the end holds."""
    stop, wrong = threading.Event(), []

    def caller():
        while not stop.is_set():
            value = opmux.rms_norm(X, W)[0, 0].item()
            if value not in (1.0, 2.0):
                wrong.append(value)

    two = returning(lambda x: torch.full_like(x, 2.0))
    with backends(a=implementation(ones), b=implementation(two)):
        threads = [threading.Thread(target=caller) for _ in range(4)]
        for thread in threads:
            thread.start()
        for turn in range(150):
            opmux.policy.prefer("b" if turn % 2 else "a")
            if turn % 10 == 0:
                with backends(c=implementation(ones, archs=("sm_90",), features=(Exact("hidden"),))):
                    opmux.rms_norm(X, W)
            assert opmux.rms_norm(X, W)[0, 0].item() == (2.0 if turn % 2 else 1.0)
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_a_first_call_from_many_threads():
    barrier, results = threading.Barrier(8), []

    def caller():
        barrier.wait()
        results.append(opmux.rms_norm(X, W).sum().item())

    with backends(a=implementation(ones)):
        threads = [threading.Thread(target=caller) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == [32.0] * 8


def test_the_way_of_a_miss_through_the_source_stays_short():
    """Counted by benchmarks/plan_way.py, which says what a stay is and exits with 1 above its limits."""
    program = Path(__file__).parents[2] / "benchmarks" / "plan_way.py"
    environment = {**os.environ, "OPMUX_PLUGINS": ""}
    done = subprocess.run(
        [sys.executable, program, "--json"], capture_output=True, text=True, env=environment, check=False
    )
    found = json.loads(done.stdout)
    assert done.returncode == 0, found
    assert found["stays"] == found["modules"] + found["returns"] > found["modules"] > 10
