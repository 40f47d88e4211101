"""While a CUDA or HIP graph is captured nothing is planned, built or fallen back from (a pretended capture).

tests/gpu/test_capture.py captures for real.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from backends import backends, implementation
from torch import Tensor
from torch_bridge.samples import ALL, DIFFERENTIABLE, WITH_OUT, Sample, outputs, sample, total

import opmux
from opmux.callpath.op import OPS
from opmux.errors import CaptureRefused
from opmux.running import modes
from opmux.signatures.validation import describe_call

Capture = Callable[[], Any]
CAPTURABLE = [n for n in ALL if OPS[n].capturable]
UNCAPTURABLE = [n for n in ALL if not OPS[n].capturable]


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch) -> Capture:
    """A context manager inside of which the current stream seems to capture."""

    @contextmanager
    def capturing() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(modes, "capturing", lambda: True)
            yield

    return capturing


def with_defaults(call: Sample) -> dict[str, Any]:
    return {o.name: call.options.get(o.name, o.default) for o in call.op.signature.options}


def unplanned_text(call: Sample) -> str:
    return (
        f"{call.op.name}: no plan is made during graph capture, and this call has none yet\n"
        f"  call:      {describe_call(call.op.signature, call.tensors, with_defaults(call))}\n"
        "  try:       run the call once before the capture"
    )


def test_nothing_captures_here() -> None:
    assert not modes.capturing()


@pytest.mark.parametrize("way", ["public", "registered"])
@pytest.mark.parametrize("name", ALL)
def test_a_call_without_a_plan_is_refused(name: str, way: str, capture: Capture) -> None:
    call = sample(name)
    call.op.drop_plans()
    before = call.copy()
    with capture(), pytest.raises(CaptureRefused) as raised:
        call() if way == "public" else call.registered(*call.tensors, **call.options)
    assert str(raised.value) == unplanned_text(call)
    torch.testing.assert_close(call.tensors, before.tensors, rtol=0, atol=0)
    assert opmux.quarantined() == ()
    call()  # and outside of the capture it runs


@pytest.mark.parametrize("name", CAPTURABLE)
def test_a_planned_call_runs(name: str, capture: Capture) -> None:
    call, expected = sample(name), sample(name)
    expected_results = expected()
    with capture():
        torch.testing.assert_close(call(), expected_results, rtol=0, atol=0)
        torch.testing.assert_close(call.tensors, expected.tensors, rtol=0, atol=0)
        registered = sample(name)
        given = registered.registered(*registered.tensors, **registered.options)
        torch.testing.assert_close(given, expected_results, rtol=0, atol=0)


@pytest.mark.parametrize("name", sorted(set(CAPTURABLE) & set(WITH_OUT)))
def test_a_planned_call_runs_into_out(name: str, capture: Capture) -> None:
    call = sample(name)
    expected = outputs(call())
    out = tuple(torch.empty_like(r) for r in expected)
    with capture():
        call(out=out if len(out) > 1 else out[0])
    torch.testing.assert_close(out, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", [n for n in UNCAPTURABLE if OPS[n].in_place_of is None])
def test_what_reads_data_is_refused_though_it_is_planned(name: str, capture: Capture) -> None:
    call = sample(name)
    call()
    with capture(), pytest.raises(CaptureRefused) as raised:
        call()
    assert str(raised.value) == (
        f"{name}: reference cannot run during graph capture (it declares capturable=False)\n"
        f"  call:      {describe_call(call.op.signature, call.tensors, with_defaults(call))}\n"
        "  try:       a backend that can (see opmux.explain), or capture around this call"
    )


def test_an_in_place_op_is_refused_by_the_op_that_it_runs(capture: Capture) -> None:
    call = sample("apply_rope_")
    call()
    with capture(), pytest.raises(CaptureRefused, match="apply_rope: reference cannot run during graph capture"):
        call()


def counting(**fields: Any) -> tuple[list[int], Any]:
    """How often it ran, and an implementation of apply_rope that counts."""
    runs: list[int] = []

    def target(*tensors: Any, **options: Any) -> Any:
        runs.append(1)
        return OPS["apply_rope"].reference(*tensors, **options)

    return runs, implementation(target, "apply_rope", **fields)


def test_a_backend_that_declares_capturable_takes_the_place_of_a_reference_that_is_not(capture: Capture) -> None:
    runs, record = counting(capturable=True)
    with backends(graphs=record):
        for circumstance in (contextlib.nullcontext, capture):
            with circumstance():
                sample("apply_rope")()
                sample("apply_rope_")()
    assert len(runs) == 4


def test_a_backend_that_does_not_declare_capturable_is_not_launched(capture: Capture) -> None:
    runs, record = counting()
    with backends(eager=record):
        sample("apply_rope")()
        with capture(), pytest.raises(CaptureRefused, match="apply_rope: eager cannot run during graph capture"):
            sample("apply_rope")()
    assert len(runs) == 1


def test_another_size_of_a_planned_call_runs(capture: Capture) -> None:
    weight = torch.randn(8)
    opmux.rms_norm(torch.randn(5, 8), weight)
    with capture():
        assert opmux.rms_norm(torch.randn(77, 8), weight).shape == (77, 8)


def test_a_call_planned_through_torch_ops_runs(capture: Capture) -> None:
    call = sample("rms_norm")
    call.op.drop_plans()
    call.registered(*call.tensors, **call.options)
    with capture():
        call()


def test_another_key_is_another_plan(capture: Capture) -> None:
    opmux.rms_norm(torch.randn(5, 8), torch.randn(8))
    with capture(), pytest.raises(CaptureRefused, match="no plan is made during graph capture"):
        opmux.rms_norm(torch.randn(5, 8, dtype=torch.bfloat16), torch.randn(8, dtype=torch.bfloat16))


def test_a_changed_policy_asks_for_new_plans(capture: Capture) -> None:
    call = sample("rms_norm")
    call()
    with opmux.policy.override(prefer=["reference"]):
        with capture(), pytest.raises(CaptureRefused, match="run the call once before the capture"):
            call()
        call()
        with capture():
            call()


def test_a_fault_during_capture_is_not_fallen_back_from(capture: Capture) -> None:
    ready = []

    def target(x: Tensor, weight: Tensor, **options: Any) -> Tensor:
        if ready:
            raise RuntimeError("launch failed")
        return OPS["rms_norm"].reference(x, weight, **options)

    call = sample("rms_norm")
    with backends(fragile=implementation(target, capturable=True)):
        call()
        ready.append(True)
        with capture(), pytest.raises(CaptureRefused) as raised:
            call()
        assert opmux.quarantined() == ()
    assert str(raised.value) == (
        "rms_norm: fragile (opmux-fragile 1.2.3) failed during graph capture, where no fallback may run: "
        "RuntimeError: launch failed; run the call once before the capture"
    )


@pytest.mark.parametrize("name", [n for n in DIFFERENTIABLE if OPS[n].capturable])
def test_a_training_step_is_planned_forward_and_backward(name: str, capture: Capture) -> None:
    call = sample(name)
    call = call.requiring(*call.differentiable)
    OPS[call.op.gradient].drop_plans()
    loss = total(call())
    with capture(), pytest.raises(CaptureRefused, match=f"{call.op.gradient}: no plan is made during graph capture"):
        loss.backward()
    total(call()).backward()
    with capture():
        total(call()).backward()


def test_bind_is_refused_and_what_was_bound_runs(capture: Capture) -> None:
    x, weight = torch.randn(5, 8), torch.randn(8)
    fast = opmux.rms_norm.bind(x, weight)
    with capture():
        torch.testing.assert_close(fast(x, weight), opmux.rms_norm.reference(x, weight))
        with pytest.raises(CaptureRefused) as raised:
            opmux.rms_norm.bind(x, weight)
    assert str(raised.value) == (
        "rms_norm: no plan is made during graph capture, and bind makes one\n"
        "  call:      x float32[5, 8], weight float32[8]\n"
        "  try:       bind before the capture, and call what it returns inside"
    )


def test_index_data_is_not_read_during_capture_though_the_policy_asks_for_checks(capture: Capture) -> None:
    def target(*tensors: Any, **options: Any) -> Any:
        return OPS["apply_rope"].reference(*tensors, **options)

    q, k, cos, sin, positions = sample("apply_rope").tensors
    with (
        backends(graphs=implementation(target, "apply_rope", capturable=True)),
        opmux.policy.override(check=True),
        pytest.MonkeyPatch.context() as patch,
    ):
        opmux.apply_rope(q, k, cos, sin, positions)
        patch.setattr(OPS["apply_rope"], "check_data", lambda **given: pytest.fail("read during capture"))
        with capture():
            opmux.apply_rope(q, k, cos, sin, positions)
