"""trace: what ran, how often and for how long."""

import torch
from backends import backends, implementation

import opmux
from opmux.running import modes

X, W = torch.randn(4, 8), torch.randn(8)


def ones(x, weight, *, eps, weight_offset, config=None):
    return torch.ones_like(x)


def test_a_trace_counts_calls_backends_and_time():
    with backends(a=implementation(ones)), opmux.trace() as trace:
        for _ in range(3):
            opmux.rms_norm(X, W)
        opmux.rms_norm(X, W, backend="reference")
        opmux.silu_and_mul(X)
    rows = {(r.op, r.backend): r for r in trace.rows}
    assert {key: row.calls for key, row in rows.items()} == {
        ("rms_norm", "a"): 3, ("rms_norm", "reference"): 1, ("silu_and_mul", "reference"): 1,
    }  # fmt: skip
    assert all(row.host_us > 0 and row.device_us == 0 and row.fallbacks == 0 for row in trace.rows)
    lines = str(trace).splitlines()
    assert lines[0].split() == ["op", "arch", "backend", "calls", "fallbacks", "awaiting", "host_us", "device_us"]
    assert lines[1].split()[:6] == ["rms_norm", "cpu", "a", "3", "0", "0"]
    assert trace.as_dict()[0]["calls"] == 3


def test_a_trace_ends_and_nests():
    with opmux.trace() as outer:
        opmux.rms_norm(X, W)
        with opmux.trace() as inner:
            opmux.rms_norm(X, W)
    opmux.rms_norm(X, W)
    assert [r.calls for r in outer.rows] == [2]
    assert [r.calls for r in inner.rows] == [1]


def test_calls_are_captured_that_ran_in_a_trace_or_before_it(monkeypatch):
    def captured(call):
        with monkeypatch.context() as patch:
            patch.setattr(modes, "capturing", lambda: True)
            return call()

    with backends(a=implementation(ones, capturable=True)):
        with opmux.trace() as before:
            opmux.rms_norm(X, W)
        assert captured(lambda: opmux.rms_norm(X, W)).sum() == X.numel()
        with opmux.trace() as during:
            captured(lambda: opmux.rms_norm(X, W))
        opmux.rms_norm(X, W)
    assert [(r.backend, r.calls) for r in before.rows] == [("a", 1)]
    assert [(r.backend, r.calls) for r in during.rows] == [("a", 1)]


def test_a_trace_counts_fallbacks():
    def broken(x, weight, *, eps, weight_offset):
        raise RuntimeError("odd")

    with backends(a=implementation(broken)), opmux.trace() as trace:
        opmux.rms_norm(X, W)
        opmux.rms_norm(X, W)
    assert [(r.backend, r.calls, r.fallbacks) for r in trace.rows] == [("reference", 2, 2)]


def test_a_trace_sees_backward_and_compiled_calls():
    x = X.clone().requires_grad_()
    compiled = torch.compile(lambda x, w: opmux.rms_norm(x, w).sum(), backend="aot_eager", fullgraph=True)
    compiled(x, W)
    with opmux.trace() as trace:
        compiled(x, W).backward()
    assert {r.op: r.calls for r in trace.rows} == {"rms_norm": 1, "rms_norm_backward": 1}
