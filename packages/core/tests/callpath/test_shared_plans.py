"""Calls that look alike and must not share a plan, and calls that look different and must."""

import enum
import threading

import pytest
import torch
from backends import backends, implementation, plugin
from torch import nn

import opmux
from opmux.errors import BackendFault, InvalidArgument
from opmux.plugin import Dtype, Exact, MultipleOf, OneOf, Priority
from opmux.plugins import loading
from opmux.plugins.loading import temporary_plugin

X, W = torch.randn(4, 8), torch.randn(8)
Q = torch.randn(2, 5, 4, 8)


def filled(value):
    def target(x, *tensors, **options):
        return torch.full_like(x, value)

    return target


def test_a_plan_made_without_gradients_does_not_drop_them_later():
    """Evaluation first, training afterwards, on the same parameters."""
    weight = nn.Parameter(W.clone())
    with backends(a=implementation(filled(7.0))):
        for _ in range(2):
            with torch.no_grad():
                assert not opmux.rms_norm(X, weight).requires_grad
            result = opmux.rms_norm(X, weight)
            assert result.requires_grad
            assert (result == 7).all()


def test_an_absent_optional_tensor_keeps_its_guard():
    weight = torch.randn(3, 8)
    opmux.linear(X, weight)
    entry = opmux.linear.op.front
    for _ in range(3):
        opmux.linear(X, weight)
    assert opmux.linear.op.front is entry
    opmux.linear(X, weight, torch.randn(3))
    opmux.linear(X, weight)
    assert torch.equal(opmux.linear(X, weight), opmux.linear.reference(X, weight))


def test_one_tensor_given_twice_has_a_guard_of_its_own():
    opmux.add_rms_norm(X, X, W)
    entry = opmux.add_rms_norm.op.front
    opmux.add_rms_norm(X, X, W)
    assert opmux.add_rms_norm.op.front is entry
    _, total = opmux.add_rms_norm(X, X, W)
    assert torch.equal(total, X + X)


def test_a_plan_made_without_autocast_is_not_used_under_it():
    """A target that computes with torch ops is plain Python: autocast must be off around it, and costs nothing else."""
    weight = torch.randn(3, 8)
    with backends(a=implementation(lambda x, w, bias: x @ w.T, op="linear")):
        for _ in range(3):
            assert opmux.linear(X, weight).dtype == torch.float32
            with torch.autocast("cpu", torch.bfloat16):
                assert (X @ weight.T).dtype == torch.bfloat16
                assert opmux.linear(X, weight).dtype == torch.float32
                assert opmux.linear(X, weight, backend="a").dtype == torch.float32
                assert torch.ops.opmux.linear(X, weight).dtype == torch.float32
                assert opmux.linear.bind(X, weight)(X, weight).dtype == torch.float32
        assert opmux.quarantined() == ()


def test_an_old_front_does_not_come_back_after_a_change_of_policy():
    with backends(a=implementation(filled(1.0))):
        opmux.rms_norm(X, W)
        op = opmux.rms_norm.op
        stale = op.namespace[f"_other_front_{op._versions}"]
        opmux.policy.disable("a")
        stale(X, W)
        assert opmux.rms_norm(X, W).sum() != 32


def test_two_threads_that_meet_one_fault_blame_one_backend():
    barrier, seen = threading.Barrier(2), []
    state = {"broken": False}

    def target(x, weight, *, eps, weight_offset):
        if state["broken"]:
            barrier.wait(timeout=20)
            raise RuntimeError("both at once")
        return torch.ones_like(x)

    def caller():
        seen.append(opmux.rms_norm(X, W)[0, 0].item())

    with backends(a=implementation(target, priority=Priority.SPECIALISED), b=implementation(filled(2.0))):
        opmux.rms_norm(X, W)
        state["broken"] = True
        threads = [threading.Thread(target=caller) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen == [2.0, 2.0]
        assert [q.name for q in opmux.quarantined()] == ["a"]


def test_a_negated_view_reaches_a_target_as_its_values():
    seen = []

    def target(x, weight, *, eps, weight_offset):
        seen.append((x.is_neg(), x.clone()))
        return torch.empty_like(x, memory_format=torch.contiguous_format)

    view = torch.randn(4, 8, dtype=torch.complex64).conj().imag
    assert view.is_neg()
    with backends(a=implementation(target)):
        opmux.rms_norm(view, W)
    assert [negated for negated, _ in seen] == [False]
    assert torch.equal(seen[0][1], view.resolve_neg())


class Kind(enum.Enum):
    A = 1


REFUSED = [
    ({"when": Dtype("x", "float32")}, "when= is not a tuple"),
    ({"archs": None}, "archs= is not a tuple"),
    ({"priority": "high"}, "priority 'high' is not an int"),
    ({"target": 3}, "target 3 is neither 'module:function' nor callable"),
    ({"when": (MultipleOf("hidden", 0),)}, "MultipleOf('hidden', 0) has no meaning"),
    ({"when": (OneOf("hidden", Kind.A),)}, "OneOf('hidden', ...) takes plain numbers"),
    ({"when": (OneOf("eps", float("inf")),)}, "OneOf('eps', ...) takes plain numbers"),
    ({"when": (Dtype("x", "float31"),)}, "['float31'] are not dtypes of torch"),
]


@pytest.mark.parametrize(("fields", "reason"), REFUSED)
def test_a_record_that_would_break_calls_is_refused_when_it_loads(fields, reason):
    record = implementation(**{"target": filled(1.0), **fields})
    reason = f"planted of rms_norm: {reason}"
    with backends(healthy=implementation(filled(2.0), priority=1), planted=record):
        assert [f.reason[: len(reason)] for f in loading.failed_plugins()] == [reason]
        assert opmux.rms_norm(X, W).sum() == 64


@pytest.mark.parametrize("name", ["reference", "opmux", "a:b", "a,b", ""])
def test_names_that_are_the_cores_own_are_refused(name):
    with temporary_plugin(plugin(implementation(filled(1.0))), name):
        assert loading.failed_plugins()[-1].reason.startswith(
            f"is called {name!r}: a backend's name is a Python identifier"
        )
    assert torch.equal(opmux.rms_norm(X, W), opmux.rms_norm.reference(X, W))


def test_a_third_with_a_name_that_two_declared_does_not_load_either():
    made = [plugin(implementation(filled(float(i)))) for i in range(3)]
    with (
        temporary_plugin(made[0], "a", "p0"),
        temporary_plugin(made[1], "a", "p1"),
        temporary_plugin(made[2], "a", "p2"),
    ):
        assert opmux.explain(opmux.rms_norm, X, W).chosen.name == "reference"
    with temporary_plugin(made[1], "a", "p1"):
        assert opmux.rms_norm(X, W).sum() == 32


def test_out_of_memory_on_the_host_is_nobodys_fault():
    def target(x, weight, *, eps, weight_offset):
        return torch.empty(1 << 50)

    with backends(a=implementation(target)):
        with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
            opmux.rms_norm(X, W)
        assert opmux.quarantined() == ()


@pytest.mark.parametrize(
    ("target", "told"),
    [
        (lambda x, w, **o: (x.clone(),), "returned a tuple as `y`, expected float32[4, 8] on cpu"),
        (lambda x, w, **o: x, "returned `y` in the memory of `x`, expected a tensor of its own"),
        (lambda x, w, **o: torch.empty(8, 4).T, "returned `y` with strides [1, 4], expected a contiguous tensor"),
    ],
)
def test_a_result_of_the_wrong_form_is_a_fault(target, told):
    with backends(a=implementation(target)):
        assert torch.equal(opmux.rms_norm(X, W), opmux.rms_norm.reference(X, W))
        assert opmux.quarantined()[0].reason == f"rms_norm: a (opmux-a 1.2.3) {told}; report it to its authors"


def test_many_faulty_plans_count_as_a_fault_on_the_arch():
    def target(x, weight, *, eps, weight_offset):
        raise RuntimeError("every time")

    with backends(a=implementation(target, features=(Exact("tokens"),))):
        for rows in range(1, 40):
            opmux.rms_norm(torch.randn(rows, 8), W)
        assert len(opmux.quarantined()) == 17
        assert opmux.quarantined()[-1].scope == "arch"


def test_under_strict_a_quarantined_better_choice_is_not_passed_over_in_silence():
    def target(x, weight, *, eps, weight_offset):
        raise RuntimeError("odd")

    with backends(a=implementation(target), z=implementation(target, priority=-5)):
        opmux.rms_norm(X, W)
        opmux.policy.strict(True)
        with pytest.raises(BackendFault) as caught:
            opmux.rms_norm(X, W)
    assert str(caught.value) == (
        "rms_norm: a is in quarantine, and the policy is strict: RuntimeError: odd\n"
        "  call:      x float32[4, 8], weight float32[8]\n"
        "  try:       fix the cause and call opmux.quarantine_clear(), or disable it"
    )


Y, BUFFER = torch.empty(4, 8), torch.empty(2, 4, 8)
OVERWRITTEN = [
    (
        lambda: opmux.rms_norm(X, W, out=(torch.empty(4, 8),)),
        "rms_norm: `out` expected a tensor, got a tuple of 1; pass the tensor itself",
    ),
    (
        lambda: opmux.add_rms_norm(X, X, W, out=(Y, Y)),
        "add_rms_norm: `out` expected tensors of their own, got two in one memory; pass tensors that share none",
    ),
    (
        lambda: opmux.rms_norm(X, W, out=torch.empty(12).as_strided((4, 8), (1, 1))),
        "rms_norm: `out` expected a tensor whose elements do not overlap, got strides [1, 1]; "
        "pass a tensor that is not expanded",
    ),
    (
        lambda: opmux.add_rms_norm_(Y, Y, W),
        "add_rms_norm_: `residual` expected a tensor other than `x`, got the same one; both are written: pass a copy",
    ),
    (
        lambda: opmux.rms_norm(X, W, backend=5),
        "rms_norm: `backend` expected a name (str) or None, got 5; see `opmux backends`",
    ),
]


def test_slices_of_one_buffer_are_tensors_of_their_own():
    opmux.add_rms_norm(X, X, W, out=(BUFFER[0], BUFFER[1]))
    assert torch.equal(BUFFER[1], X + X)


@pytest.mark.parametrize(("call", "message"), OVERWRITTEN)
def test_arguments_that_would_be_written_over_each_other(call, message):
    with pytest.raises(InvalidArgument) as caught:
        call()
    assert str(caught.value) == message


def test_changes_of_policy_from_many_threads_are_all_kept():
    names = [f"b{i}" for i in range(8)]
    with backends(**{name: implementation(filled(1.0)) for name in names}):
        threads = [threading.Thread(target=opmux.policy.disable, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {d.name for d in opmux.policy.current().disabled} == set(names)
        opmux.policy.reset()
        opmux.policy.disable("b0", ops=(op for op in ["rms_norm"]))
        assert opmux.explain(opmux.rms_norm, X, W).chosen.name == "b1"
        with pytest.raises(InvalidArgument, match=r"policy\.override: `prefer` expected a list of names, got the str"):
            opmux.policy.override(prefer="b1").__enter__()
