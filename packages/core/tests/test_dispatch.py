"""The call path: what runs, what happens when it fails, and what a plan is."""

import contextlib
import threading

import pytest
import torch
from backends import backends, implementation

import opmux
from opmux.callpath.op import OPS, PlanTable
from opmux.errors import BackendFault, CaptureRefused, InvalidArgument, OpmuxError, UnsupportedCall
from opmux.plugin import AtMost, Bucket, BuildFailed, Exact, MultipleOf, Priority
from opmux.running import faults

X, W = torch.randn(4, 8), torch.randn(8)
WANTED = opmux.rms_norm.reference(X, W)


def returning(value):
    """A target that returns this."""

    def target(x, weight, *, eps, weight_offset):
        return value(x) if callable(value) else value

    return target


def raising(error):
    """A target that raises this."""

    def target(x, weight, *, eps, weight_offset):
        raise error

    return target


SPECIAL = Priority.SPECIALISED
ones = returning(torch.ones_like)


def reasons(op=opmux.rms_norm, *tensors):
    return {c.name: (c.status, c.reason) for c in opmux.explain(op, *(tensors or (X, W))).candidates}


# --- the direct way -----------------------------------------------------------------------------------------------


def test_a_target_gets_the_ops_own_arguments():
    seen = []

    def target(*tensors, **options):
        seen.append((tensors, options))
        return torch.empty_like(tensors[0])

    with backends(a=implementation(target, op="layer_norm")):
        opmux.layer_norm(X, W)
        opmux.layer_norm(X, W, W, eps=1e-3)
    assert [(len(t), t[2] is None, o) for t, o in seen] == [(3, True, {"eps": 1e-5}), (3, False, {"eps": 1e-3})]


def test_a_string_target_is_imported_when_first_chosen(tmp_path, monkeypatch):
    (tmp_path / "late_kernels.py").write_text("import torch\ndef f(x, weight, **o):\n    return torch.zeros_like(x)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import sys

    with backends(a=implementation("late_kernels:f")):
        opmux.explain(opmux.rms_norm, X, W)
        assert "late_kernels" not in sys.modules
        assert opmux.rms_norm(X, W).sum() == 0
        assert "late_kernels" in sys.modules


def test_calls_with_equal_features_share_a_plan():
    with backends(a=implementation(ones, when=(MultipleOf("hidden", 8), AtMost("tokens", 64)))):
        for rows in range(1, 40):
            opmux.rms_norm(torch.randn(rows, 8), W)
        assert len(opmux.rms_norm.op.table) == 1
        assert opmux.rms_norm(torch.randn(65, 8), W).shape == (65, 8)
        assert len(opmux.rms_norm.op.table) == 2
        assert len(opmux.rms_norm.op.front[2]) == 2


def test_many_shapes_grow_no_table_beyond_the_feature_keys():
    with backends(a=implementation(ones, when=(MultipleOf("hidden", 8),), features=(Bucket("tokens"),))):
        weights = {hidden: torch.randn(hidden) for hidden in range(1, 101)}
        for rows in range(100):
            for hidden, weight in weights.items():
                opmux.rms_norm(torch.empty(rows, hidden), weight)
        # 2 answers to hidden % 8, 8 buckets of 0..99 (0 counts as 2)
        assert len(opmux.rms_norm.op.table) == 16
        assert len(opmux.rms_norm.op.front[2]) == 16


def test_a_plan_table_is_bounded(monkeypatch):
    monkeypatch.setattr(PlanTable, "LIMIT", 8)
    with backends(a=implementation(ones, features=(Exact("hidden"),))):
        for hidden in range(1, 50):
            opmux.rms_norm(torch.empty(2, hidden), torch.empty(hidden))
        table = opmux.rms_norm.op.table
        assert len(table) == len(table.plans) == 8
        assert len(opmux.rms_norm.op.front[2]) == 8


def test_more_kinds_of_calls_than_guards(monkeypatch):
    """Ranks and dtypes beyond the guards kept at a time still get the right plan."""
    monkeypatch.setattr(type(opmux.rms_norm.op), "FRONTS", 3)
    for _ in range(3):
        for rank in range(1, 7):
            for dtype in (torch.float32, torch.bfloat16, torch.float64):
                x, w = torch.randn([2] * rank + [8]).to(dtype), torch.randn(8)
                assert torch.equal(opmux.rms_norm(x, w), opmux.rms_norm.reference(x, w))


def test_the_python_guard_is_as_good(monkeypatch):
    from opmux.callpath import guards

    monkeypatch.setattr(guards, "_native_answers_as_expected", lambda: False)
    OPS["rms_norm"].drop_plans()
    parameter = torch.nn.Parameter(W.clone())
    for x, w in [(X, W), (X.double(), W), (X[0], W), (X, W.bfloat16()), (X, W)]:
        assert torch.equal(opmux.rms_norm(x, w), opmux.rms_norm.reference(x, w))
    assert opmux.rms_norm(X, parameter).requires_grad
    with torch.no_grad():
        assert not opmux.rms_norm(X, parameter).requires_grad
    with torch.inference_mode():
        assert opmux.rms_norm(X, W).is_inference()
    with pytest.raises(InvalidArgument):
        opmux.rms_norm(X, None)
    OPS["rms_norm"].drop_plans()


def test_guards_tell_apart_what_a_plan_may_not_share():
    from opmux.callpath import guards

    assert guards._native_answers_as_expected(), "torch's guard is used on this version of torch"
    for make in (guards._native, guards._in_python):
        same = make((X, W))
        assert same(torch.randn(9, 3), torch.randn(5))
        others = [X.double(), X[0], X.to("meta"), X.clone().requires_grad_(), torch.nn.Parameter(X)]
        assert not any(same(x, W) for x in others)
        with torch.autocast("cpu"):
            assert not same(X, W)
        with torch.no_grad():
            assert same(X, W)


def test_exact_guards_tell_sizes_and_strides_apart():
    from opmux.callpath import guards

    for make in (guards._native, guards._in_python):
        same = make((X, W), exact=True)
        assert same(X.clone(), torch.nn.Parameter(W.clone(), requires_grad=False).detach())
        wide = torch.randn(X.shape[0], 2 * X.shape[1])[:, ::2]
        others = [X.double(), X[:-1], X[:, :-1], X.T, wide, X[None], X.to("meta"), X.clone().requires_grad_()]
        assert not any(same(x, W) for x in others)
    x = torch.randn(4, 8)
    assert guards.make_guard((x, x), exact=True)(x, x), "one tensor given twice is for the guard in Python"
    assert not guards.make_guard((x, x), exact=True)(x, x[:2])


def test_meta_tensors_need_no_target():
    with backends(a=implementation(raising(AssertionError("launched")))):
        result = opmux.rms_norm(X.to("meta"), W.to("meta"))
    assert (result.device.type, result.shape, result.dtype) == ("meta", X.shape, X.dtype)


def test_outputs_are_written_where_out_says():
    out = torch.empty(4, 8)
    assert opmux.rms_norm(X, W, out=out) is out
    assert torch.equal(out, WANTED)
    y, total = torch.empty(4, 8), torch.empty(4, 8)
    assert opmux.add_rms_norm(X, X, W, out=(y, total))[1] is total
    assert torch.equal(total, X + X)
    x = X.clone()
    opmux.rms_norm(x, W, out=x)
    assert torch.equal(x, WANTED), "an out that is an input gets the result of the old input"
    strided = torch.empty(8, 4).T
    opmux.rms_norm(X, W, out=strided)
    assert torch.equal(strided, WANTED)


def test_a_target_with_a_config_gets_it_beside_out():
    given = []

    def target(x, weight, *, eps, weight_offset, config, out=None):
        given.append((config, out))
        result = torch.full_like(x, 5.0)
        return result if out is None else out.copy_(result)

    with backends(a=implementation(target, config=lambda arch, features: {"rows": 2}, takes_out=True)):
        out = torch.empty(4, 8)
        for _ in range(3):
            opmux.rms_norm(X, W, out=out)
        assert given[-1] == ({"rows": 2}, out)
        opmux.rms_norm(X, W)
        assert given[-1] == ({"rows": 2}, None)


def test_a_target_that_takes_out_gets_it():
    given = []

    def target(x, weight, *, eps, weight_offset, out=None):
        given.append(out)
        result = torch.full_like(x, 5.0)
        return result if out is None else out.copy_(result)

    with backends(a=implementation(target, takes_out=True)):
        out = torch.empty(4, 8)
        for _ in range(2):
            opmux.rms_norm(X, W, out=out)
            assert (out == 5).all()
        version = out._version
        opmux.rms_norm(X, W, out=out)
        assert out._version > version
    assert given[-1] is out


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


def test_an_op_is_a_function_with_its_own_signature_and_docs():
    import inspect

    for op in OPS.values():
        signature = inspect.signature(op.public)
        assert [p for p in signature.parameters if p not in ("backend", "out")] == [
            *(t.name for t in op.signature.tensors),
            *(o.name for o in op.signature.options),
        ] or op.is_backward
        assert op.public.__doc__
        assert op.public.__name__ == op.name
        assert "backend" in signature.parameters
    assert inspect.signature(opmux.rms_norm).parameters["eps"].default == 1e-6


# --- faults -------------------------------------------------------------------------------------------------------

OOM = torch.OutOfMemoryError("CUDA out of memory")


def test_a_launch_fault_is_announced_once_and_the_next_choice_runs(messages):
    with backends(a=implementation(raising(RuntimeError("bad launch")), priority=SPECIAL)):
        for _ in range(3):
            assert torch.equal(opmux.rms_norm(X, W), WANTED)
        record = opmux.quarantined()[0]
        assert (record.op, record.name, record.scope, record.reason) == (
            "rms_norm", "a", "plan", "RuntimeError: bad launch",
        )  # fmt: skip
        assert reasons()["a"] == ("quarantined", "RuntimeError: bad launch")
        opmux.quarantine_clear()
        assert opmux.quarantined() == ()
        assert reasons()["a"][0] == "chosen"
    told = [r.getMessage() for r in messages.records if "quarantined" in r.getMessage()]
    assert told == [
        "rms_norm: a (opmux-a 1.2.3) is quarantined on cpu for calls like this one: RuntimeError: bad launch; "
        "the next choice runs"
    ]


def test_a_launch_fault_stays_with_its_plan():
    def picky(x, weight, *, eps, weight_offset):
        if x.dtype == torch.float64:
            raise RuntimeError("no float64")
        return torch.ones_like(x)

    with backends(a=implementation(picky)):
        assert torch.equal(opmux.rms_norm(X.double(), W), opmux.rms_norm.reference(X.double(), W))
        assert opmux.rms_norm(X, W).sum() == 32
        assert reasons()["a"][0] == "chosen"
        assert reasons(opmux.rms_norm, X.double(), W)["a"] == ("quarantined", "RuntimeError: no float64")


def test_a_fault_after_good_runs(messages):
    state = {"broken": False}

    def target(x, weight, *, eps, weight_offset):
        if state["broken"]:
            raise RuntimeError("later")
        return torch.ones_like(x)

    with backends(a=implementation(target)):
        for _ in range(3):
            assert opmux.rms_norm(X, W).sum() == 32
        state["broken"] = True
        assert torch.equal(opmux.rms_norm(X, W), WANTED)
        assert torch.equal(opmux.rms_norm(X, W), WANTED)
    assert len(messages.records) == 1


@pytest.mark.parametrize("target", ["no_such_module_anywhere:f", "math:no_such_function"])
def test_an_import_fault_quarantines_for_the_arch(target):
    with backends(a=implementation(target)):
        assert torch.equal(opmux.rms_norm(X, W), WANTED)
        assert torch.equal(opmux.rms_norm(X.double(), W), opmux.rms_norm.reference(X.double(), W))
        assert [q.scope for q in opmux.quarantined()] == ["arch"]
        assert reasons(opmux.rms_norm, X.bfloat16(), W)["a"][0] == "quarantined"


def test_a_build_fault_quarantines_for_the_arch():
    with backends(a=implementation(raising(BuildFailed("ptxas: too many registers")))):
        assert torch.equal(opmux.rms_norm(X, W), WANTED)
        assert [(q.scope, q.reason) for q in opmux.quarantined()] == [("arch", "ptxas: too many registers")]
    assert opmux.quarantined() == (), "what a plugin left behind goes with it"


def test_a_config_function_that_raises_quarantines_for_its_plan():
    def config(arch, features):
        raise KeyError("no config")

    told = "its config function raised KeyError: 'no config'"
    with backends(a=implementation(ones, config=config)):
        before = opmux.explain(opmux.rms_norm, X, W)
        assert before.chosen.name == "reference", "explain shows what runs"
        assert reasons()["a"] == ("rejected", told)
        assert torch.equal(opmux.rms_norm(X, W), WANTED)
        assert [(q.scope, q.reason) for q in opmux.quarantined()] == [("plan", told)]
        assert reasons()["a"] == ("quarantined", told)
        assert opmux.explain(opmux.rms_norm, X, W, backend="a").chosen is None


WRONG = [
    (returning(lambda x: x[:2].clone()), "returned float32[2, 8] on cpu as `y`, expected float32[4, 8] on cpu"),
    (returning(lambda x: x.double()), "returned float64[4, 8] on cpu as `y`, expected float32[4, 8] on cpu"),
    (returning(None), "returned a NoneType as `y`, expected float32[4, 8] on cpu"),
    (returning(lambda x: (x, x)), "returned 2 results, expected 1"),
    (returning(lambda x: x.to("meta")), "returned float32[4, 8] on meta as `y`, expected float32[4, 8] on cpu"),
]


@pytest.mark.parametrize(("target", "told"), WRONG, ids=[t[:30] for _, t in WRONG])
def test_a_wrong_result_is_a_fault_on_the_first_call(target, told):
    with backends(a=implementation(target)):
        assert torch.equal(opmux.rms_norm(X, W), WANTED)
        assert opmux.quarantined()[0].reason == f"rms_norm: a (opmux-a 1.2.3) {told}; report it to its authors"


def test_under_strict_a_fault_raises():
    with backends(a=implementation(raising(ValueError("odd")))), opmux.policy.override(strict=True):
        with pytest.raises(BackendFault) as caught:
            opmux.rms_norm(X, W)
        assert str(caught.value) == (
            "rms_norm: a (opmux-a 1.2.3) failed, and the policy is strict: ValueError: odd\n"
            "  call:      x float32[4, 8], weight float32[8]\n"
            "  try:       another backend (see opmux.explain), or report it to its authors"
        )
        assert isinstance(caught.value.__cause__, ValueError)
    with (
        backends(a=implementation("no_such_module_anywhere:f")),
        opmux.policy.override(strict=True),
        pytest.raises(BackendFault) as caught,
    ):
        opmux.rms_norm(X, W)
    assert str(caught.value) == (
        "rms_norm: a (opmux-a 1.2.3) cannot be loaded: ModuleNotFoundError: No module named 'no_such_module_anywhere'; "
        "mend its installation, or leave backend= away"
    )


def test_a_forced_backend_never_falls_back():
    with backends(
        a=implementation(raising(ValueError("odd"))), b=implementation(ones, when=(MultipleOf("hidden", 5),))
    ):
        with pytest.raises(BackendFault) as caught:
            opmux.rms_norm(X, W, backend="a")
        assert str(caught.value).startswith(
            "rms_norm: a (opmux-a 1.2.3) failed, and backend='a' was asked for: ValueError: odd"
        )
        assert opmux.quarantined() == ()
        with pytest.raises(UnsupportedCall) as caught:
            opmux.rms_norm(X, W, backend="b")
    assert str(caught.value) == (
        "rms_norm: no backend accepts this call on cpu for backend='b'\n"
        "  call:      x float32[4, 8], weight float32[8]\n"
        "  rejected:  a          (opmux-a 1.2.3)  not asked for: backend='b'\n"
        "             b          (opmux-b 1.2.3)  hidden = 8 is not a multiple of 5\n"
        "             reference  (opmux 0.1.0)    not asked for: backend='b'\n"
        '  try:       pad hidden to 10, or pass backend="reference"'
    )


@pytest.mark.parametrize("error", [OOM, MemoryError("host")], ids=["device", "host"])
def test_out_of_memory_is_nobodys_fault(error):
    with backends(a=implementation(raising(error))):
        with pytest.raises(type(error), match=str(error)):
            opmux.rms_norm(X, W)
        assert opmux.quarantined() == ()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_interrupts_pass_through(error):
    with backends(a=implementation(raising(error()))):
        with pytest.raises(error):
            opmux.rms_norm(X, W)
        assert opmux.quarantined() == ()


def test_a_lost_device_is_raised_as_what_it_is(monkeypatch):
    def lost():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(faults, "capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    with backends(a=implementation(raising(RuntimeError("CUDA error: an illegal memory access was encountered")))):
        with pytest.raises(RuntimeError, match=r"^CUDA error: an illegal memory access"):
            opmux.rms_norm(X, W)
        assert opmux.quarantined() == ()
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        assert torch.equal(opmux.rms_norm(X, W), WANTED), "an error that does not stick is the target's"


def test_bad_index_data_is_the_callers():
    """A kernel that fails on bad slots is not put in quarantine for it."""

    def target(*tensors, **options):
        raise RuntimeError("device-side assert")

    k = torch.randn(2, 1, 8)
    caches = torch.zeros(2, 16, 1, 8), torch.zeros(2, 16, 1, 8)
    with backends(a=implementation(target, op="write_kv_cache")):
        with pytest.raises(InvalidArgument, match="write_kv_cache: `slot_mapping`"):
            opmux.write_kv_cache(k, k, *caches, torch.tensor([0, 99]))
        assert opmux.quarantined() == ()


def test_a_mutating_op_falls_back_only_if_nothing_was_launched():
    def half_done(x, residual, weight, *, eps, weight_offset):
        x.zero_()
        raise RuntimeError("in the middle")

    def not_built(x, residual, weight, *, eps, weight_offset):
        raise BuildFailed("no compiler")

    x, residual = X.clone(), X.clone()
    with backends(a=implementation(half_done, op="add_rms_norm_", priority=SPECIAL)):
        with pytest.raises(BackendFault) as caught:
            opmux.add_rms_norm_(x, residual, W)
        assert str(caught.value) == (
            "add_rms_norm_: a (opmux-a 1.2.3) failed while it was writing `x`, `residual`, which may hold anything "
            "now: RuntimeError: in the middle\n"
            "  call:      x float32[4, 8], residual float32[4, 8], weight float32[8]\n"
            "  try:       restore `x`, `residual` and call again: the next choice will run"
        )
        x, residual = X.clone(), X.clone()
        opmux.add_rms_norm_(x, residual, W)
        assert torch.equal(residual, X + X)
    opmux.quarantine_clear()
    with backends(a=implementation(not_built, op="add_rms_norm_")):
        x, residual = X.clone(), X.clone()
        opmux.add_rms_norm_(x, residual, W)
        assert torch.equal(residual, X + X)
        assert torch.equal(x, opmux.add_rms_norm.reference(X, X, W)[0])


def test_an_in_place_op_that_nobody_claims_is_the_functional_one_and_a_copy():
    def functional(x, residual, weight, *, eps, weight_offset):
        return torch.full_like(x, 3.0), torch.full_like(x, 4.0)

    with backends(a=implementation(functional, op="add_rms_norm")):
        for backend in (None, "a"):
            x, residual = X.clone(), X.clone()
            versions = x._version, residual._version
            opmux.add_rms_norm_(x, residual, W, backend=backend)
            assert (x == 3).all()
            assert (residual == 4).all()
            assert x._version > versions[0]
            assert residual._version > versions[1]
        assert opmux.explain(opmux.add_rms_norm_, X, X.clone(), W).chosen.name == "opmux:functional"
        x, residual = X.clone(), X.clone()
        opmux.add_rms_norm_(x, residual, W, backend="reference")
        assert torch.equal(residual, X + X)


def test_when_every_choice_fails_the_last_error_is_the_references(monkeypatch):
    with backends(a=implementation(raising(RuntimeError("first")))), opmux.policy.override(disable=["reference"]):
        with pytest.raises(UnsupportedCall) as caught:
            opmux.rms_norm(X, W)
        assert "a          (opmux-a 1.2.3)  RuntimeError: first" in str(caught.value)
        assert "reference  (opmux 0.1.0)    disabled by policy.override" in str(caught.value)


def test_the_process_and_other_ops_go_on_after_any_fault():
    for error in (RuntimeError("a"), TypeError("b"), OpmuxError("c"), ZeroDivisionError("d")):
        with backends(a=implementation(raising(error))):
            with contextlib.suppress(OpmuxError):
                opmux.rms_norm(X, W)
            assert torch.equal(opmux.layer_norm(X, W), opmux.layer_norm.reference(X, W))
        opmux.quarantine_clear()
    assert torch.equal(opmux.rms_norm(X, W), WANTED)


# --- a GPU without a backend --------------------------------------------------------------------------------------


@pytest.fixture
def pretend_gpu(monkeypatch):
    """CPU tensors that opmux takes for ones on an sm_90."""
    from opmux.arch import parse_arch
    from opmux.running import attempt

    monkeypatch.setattr(attempt, "arch_of", lambda device: parse_arch("sm_90"))
    OPS["rms_norm"].drop_plans()
    yield
    OPS["rms_norm"].drop_plans()


TOLD = (
    "rms_norm: no backend accepts this call on sm_90{}\n"
    "  call:      x float32[4, 8], weight float32[8]\n"
    "  rejected:  a          (opmux-a 1.2.3)  hidden = 8 is not a multiple of 128\n"
    "             b          (opmux-b 1.2.3)  disabled by OPMUX_DISABLE\n"
    "             reference  (opmux 0.1.0)    {}\n"
    '  try:       pad hidden to 128, or pass backend="reference"'
)


@pytest.mark.usefixtures("pretend_gpu")
def test_a_gpu_call_that_finds_only_the_reference_says_so_once(messages, monkeypatch):
    monkeypatch.setenv("OPMUX_DISABLE", "b")
    opmux.policy.reset()
    made = {"a": implementation(ones, when=(MultipleOf("hidden", 128),)), "b": implementation(ones)}
    with backends(**made):
        for _ in range(3):
            assert torch.equal(opmux.rms_norm(X, W), WANTED)
        told = [r.getMessage() for r in messages.records]
        assert told == [TOLD.format("; the reference runs", "the implementation of last resort")]
        opmux.policy.strict(True)
        with pytest.raises(UnsupportedCall) as caught:
            opmux.rms_norm(X, W)
        assert str(caught.value) == TOLD.format(", and the policy is strict", "not taken under strict unless asked for")
        assert torch.equal(opmux.rms_norm(X, W, backend="reference"), WANTED)
    monkeypatch.delenv("OPMUX_DISABLE")


# --- capture ------------------------------------------------------------------------------------------------------


def test_nothing_is_planned_while_capturing(monkeypatch):
    with backends(a=implementation(ones, capturable=True)):
        monkeypatch.setattr(faults, "capturing", lambda: True)
        with pytest.raises(CaptureRefused) as caught:
            opmux.rms_norm(X, W)
        assert str(caught.value) == (
            "rms_norm: no plan is made during graph capture, and this call has none yet\n"
            "  call:      x float32[4, 8], weight float32[8]\n"
            "  try:       run the call once before the capture"
        )
        monkeypatch.setattr(faults, "capturing", lambda: False)
        opmux.rms_norm(X, W)
        monkeypatch.setattr(faults, "capturing", lambda: True)
        assert opmux.rms_norm(X, W).sum() == 32, "a planned, capturable target runs"


def test_what_is_not_capturable_refuses(monkeypatch):
    with backends(a=implementation(ones)):
        opmux.rms_norm(X, W)
        monkeypatch.setattr(faults, "capturing", lambda: True)
        with pytest.raises(CaptureRefused) as caught:
            opmux.rms_norm(X, W)
        assert str(caught.value) == (
            "rms_norm: a cannot run during graph capture (it declares capturable=False)\n"
            "  call:      x float32[4, 8], weight float32[8]\n"
            "  try:       a backend that can (see opmux.explain), or capture around this call"
        )
        assert opmux.quarantined() == ()


def test_nothing_falls_back_while_capturing(monkeypatch):
    state = {"broken": False}

    def target(x, weight, *, eps, weight_offset):
        if state["broken"]:
            raise RuntimeError("invalid configuration")
        return torch.ones_like(x)

    with backends(a=implementation(target, capturable=True)):
        opmux.rms_norm(X, W)
        state["broken"] = True
        monkeypatch.setattr(faults, "capturing", lambda: True)
        with pytest.raises(CaptureRefused) as caught:
            opmux.rms_norm(X, W)
        assert str(caught.value) == (
            "rms_norm: a (opmux-a 1.2.3) failed during graph capture, where nothing may take its place: "
            "RuntimeError: invalid configuration; run the call once before the capture"
        )


# --- the debug policy ---------------------------------------------------------------------------------------------


def test_the_debug_policy_checks_indices_and_every_output():
    runs = []

    def sloppy(k, v, k_cache, v_cache, slot_mapping, *, layout):
        runs.append(1)

    def late(x, weight, *, eps, weight_offset):
        runs.append(1)
        return torch.ones_like(x) if len(runs) < 3 else torch.ones(1)

    k = torch.randn(2, 1, 8)
    caches = torch.zeros(2, 16, 1, 8), torch.zeros(2, 16, 1, 8)
    with backends(a=[implementation(sloppy, op="write_kv_cache"), implementation(late)]):
        opmux.write_kv_cache(k, k, *caches, torch.tensor([0, 99]))
        assert len(runs) == 1, "by default indices are not read"
        with opmux.policy.override(check=True):
            with pytest.raises(InvalidArgument, match="write_kv_cache: `slot_mapping`"):
                opmux.write_kv_cache(k, k, *caches, torch.tensor([0, 99]))
            opmux.write_kv_cache(k, k, *caches, torch.tensor([0, 31]))
            with pytest.raises(InvalidArgument, match="write_kv_cache: `slot_mapping`"):
                opmux.write_kv_cache(k, k, *caches, torch.tensor([0, 99]))
            for _ in range(3):
                assert opmux.rms_norm(X, W).shape == X.shape, "an output that turns wrong is a fault too"
            assert opmux.quarantined()[0].name == "a"


# --- threads ------------------------------------------------------------------------------------------------------


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
